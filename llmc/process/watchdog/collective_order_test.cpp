#include "llmc/process/watchdog/collective_order.h"

#include <doctest/doctest.h>

#include <numeric>

#include "llmc/base/error.h"

namespace {

CollectiveRecord call(std::vector<int> members, std::string what, std::string where) {
    return {std::move(members), std::move(what), std::move(where)};
}

// A transfer of one float, the first from `from` to `to`.
CollectiveRecord transfer(int from, int to) {
    return call({from, to}, "transfer of 1 fp32",
                "number 1 from " + std::to_string(from) + " to " + std::to_string(to));
}

CollectiveRecord all_reduce(std::vector<int> members, const std::string& group) {
    return call(std::move(members), "all-reduce of 4 fp32, sum", "number 1 of group " + group);
}

}   // namespace

TEST_CASE("collective order: the same order on all ranks, in whatever order it is told") {
    CollectiveOrder order;
    for (int turn = 1; turn <= 3; turn++) {
        const std::string number = "number " + std::to_string(turn);
        const CollectiveRecord a = call({0, 1, 2}, "all-reduce of 4 fp32, sum", number + " of group all");
        const CollectiveRecord b = call({0, 2}, "all-gather of 8 bf16", number + " of group tp");
        for (int rank : {2, 0}) {
            CHECK(!order.add(rank, {a}));
            CHECK(!order.add(rank, {b}));
        }
        CHECK(!order.add(1, {a}));   // rank 1 knows nothing of b
    }
}

TEST_CASE("collective order: opposite orders on two communicators are named") {
    CollectiveOrder order;
    const CollectiveRecord a = call({0, 1}, "all-reduce of 4 fp32, sum", "number 7 of group all");
    const CollectiveRecord b = call({0, 1}, "all-gather of 8 bf16", "number 2 of group zero");
    CHECK(!order.add(0, {a}));
    CHECK(!order.add(0, {b}));
    const std::optional<std::string> cycle = order.add(1, {b});
    REQUIRE(cycle);
    CHECK(*cycle ==
          "collectives are called in a cycle: rank 0 calls all-reduce of 4 fp32, sum (number 7 of group all) and waits "
          "for rank 1; rank 1 calls all-gather of 8 bf16 (number 2 of group zero) and waits for rank 0");
}

TEST_CASE("collective order: another size in one communicator is named") {
    CollectiveOrder order;
    CHECK(!order.add(2, {call({0, 1, 2}, "all-reduce of 4 fp32, sum", "number 7 of group all")}));
    const auto difference = order.add(1, {call({0, 1, 2}, "all-reduce of 5 fp32, sum", "number 7 of group all")});
    REQUIRE(difference);
    CHECK(*difference ==
          "ranks call different collectives: rank 1 calls all-reduce of 5 fp32, sum (number 7 of group all), where "
          "rank 2 "
          "calls all-reduce of 4 fp32, sum");
}

TEST_CASE("collective order: a cycle over four ranks, of which no two share more than one call, is named") {
    // two communicators of each rank: tp joins 0 and 1, 2 and 3; dp joins 1 and 2, 3 and 0
    const CollectiveRecord tp01 = all_reduce({0, 1}, "tp"), tp23 = all_reduce({2, 3}, "tp");
    const CollectiveRecord dp12 = all_reduce({1, 2}, "dp"), dp30 = all_reduce({0, 3}, "dp");
    CollectiveOrder order;
    for (int rank : {0, 1, 2, 3}) {
        const CollectiveRecord& first = rank == 0 ? tp01 : rank == 1 ? dp12 : rank == 2 ? tp23 : dp30;
        const CollectiveRecord& second = rank == 0 ? dp30 : rank == 1 ? tp01 : rank == 2 ? dp12 : tp23;
        const std::optional<std::string> cycle = order.add(rank, {first});
        CHECK(cycle.has_value() == (rank == 3));
        if (rank == 3) {
            for (int r = 0; r < 4; r++) CHECK(cycle->find("waits for rank " + std::to_string(r)) != std::string::npos);
        }
        if (rank < 3) CHECK(!order.add(rank, {second}));
    }
    // one rank the other way round, and there is none
    CollectiveOrder other;
    for (int rank : {0, 1, 2}) {
        CHECK(!other.add(rank, {rank == 0 ? tp01 : rank == 1 ? dp12 : tp23}));
        CHECK(!other.add(rank, {rank == 0 ? dp30 : rank == 1 ? tp01 : dp12}));
    }
    CHECK(!other.add(3, {tp23}));
    CHECK(!other.add(3, {dp30}));
}

TEST_CASE("collective order: sends and receives count, those of a group have no order among themselves") {
    CollectiveOrder apart;   // both send first
    CHECK(!apart.add(0, {transfer(0, 1)}));
    CHECK(!apart.add(0, {transfer(1, 0)}));
    CHECK(apart.add(1, {transfer(1, 0)}));

    CollectiveOrder together;
    CHECK(!together.add(0, {transfer(0, 1), transfer(1, 0)}));
    CHECK(!together.add(1, {transfer(1, 0), transfer(0, 1)}));
    // groups need not be the same on both sides
    CHECK(!together.add(0, {all_reduce({0, 1}, "a"), all_reduce({0, 1}, "b")}));
    CHECK(!together.add(1, {all_reduce({0, 1}, "b")}));
    CHECK(!together.add(1, {all_reduce({0, 1}, "a")}));
    CHECK(!together.add(0, {all_reduce({0, 1}, "c")}));
    CHECK(!together.add(1, {all_reduce({0, 1}, "c")}));
}

TEST_CASE("collective order: 1F1B's send and receive must stand in one group, whatever their communicators") {
    auto activations = [](int i) { return call({0, 1}, "transfer of 8 bf16", text("number ", i, " of group down")); };
    auto gradients = [](int i) { return call({0, 1}, "transfer of 8 bf16", text("number ", i, " of group up")); };
    CollectiveOrder apart;
    for (const CollectiveRecord& record : {activations(1), activations(2), gradients(1), gradients(2)}) {
        CHECK(!apart.add(0, {record}));
    }
    CHECK(!apart.add(1, {activations(1)}));
    const std::optional<std::string> cycle = apart.add(1, {gradients(1)});
    REQUIRE(cycle);
    CHECK(cycle->find("number 2 of group down") != std::string::npos);
    CHECK(cycle->find("number 1 of group up") != std::string::npos);

    CollectiveOrder together;
    for (int rank : {0, 1}) {
        CHECK(!together.add(rank, {activations(1)}));
        CHECK(!together.add(rank, {activations(2), gradients(1)}));
        CHECK(!together.add(rank, {gradients(2)}));
    }
}

TEST_CASE("collective order: a call made twice, or by a rank that is no part of it, is named") {
    const CollectiveRecord a = all_reduce({0, 1}, "a");
    for (bool in_one_group : {false, true}) {
        CollectiveOrder order;
        if (!in_one_group) CHECK(!order.add(0, {a}));
        const std::optional<std::string> wrong =
            order.add(0, in_one_group ? CollectiveEvent{a, a} : CollectiveEvent{a});
        REQUIRE(wrong);
        CHECK(*wrong == "rank 0 calls all-reduce of 4 fp32, sum (number 1 of group a) twice");
    }
    CollectiveOrder order;
    CHECK(order.add(2, {a}).value().find("is no part of it") != std::string::npos);
}

TEST_CASE("collective order: 64 ranks, whose logs come one rank after another") {
    std::vector<int> everyone(64);
    std::iota(everyone.begin(), everyone.end(), 0);
    CollectiveOrder order;
    for (int rank : everyone) {
        for (int i = 0; i < 1000; i++) {
            const std::string number = text("number ", i);
            REQUIRE(!order.add(rank, {call(everyone, "all-reduce", number + " of group all")}));
            const int first = rank / 8 * 8;
            std::vector<int> node(everyone.begin() + first, everyone.begin() + first + 8);
            REQUIRE(!order.add(rank, {call(std::move(node), "all-gather", number + " of group tp")}));
        }
    }
}

TEST_CASE("collective order: what is no log is refused") {
    auto record = [](const std::string& members) {
        return text(R"([[{"members": )", members, R"(, "what": "x", "where": "y"}]])");
    };
    for (const std::string& wrong :
         {std::string(), std::string("x"), std::string("1"), std::string("{}"), std::string("[1]"), std::string("[[]]"),
          std::string(R"([[{"members": [0], "what": "x"}]])"), std::string(R"([[{"members": [0], "where": "y"}]])"),
          std::string(R"([[{"what": "x", "where": "y"}]])"), record("0"), record("[x]"), record("[-1]"),
          record("[999999999999]"), record("[1.0]"), record("[0]") + "1"}) {
        INFO(wrong);
        CHECK(!CollectiveLog::parse(wrong));
    }
    CHECK(CollectiveLog::parse("[]")->empty());
    CHECK(CollectiveLog::parse(record("[0, 1]"))->size() == 1);
}

TEST_CASE("collective order: logs travel as text, groups as one event") {
    CollectiveLog log;
    CHECK(log.take().empty());
    log.add(call({0, 3}, "broadcast of 5 int32 from rank 1", "number 9 of group pp"));
    log.begin_group();
    log.begin_group();
    log.add(call({1}, "x", "y"));
    log.end_group();
    CHECK(CollectiveLog::parse(log.take())->size() == 1);   // the group has not ended
    log.add(call({1, 2}, "v", "w"));
    log.end_group();
    log.begin_group();   // without calls: nothing
    log.end_group();
    const std::vector<CollectiveEvent> events = CollectiveLog::parse(log.take()).value();
    REQUIRE(events.size() == 1);
    REQUIRE(events[0].size() == 2);
    CHECK(events[0][0].members == std::vector<int>{1});
    CHECK(events[0][1].members == std::vector<int>{1, 2});
    CHECK(events[0][1].what == "v");
    CHECK(events[0][1].where == "w");
    CHECK(log.take().empty());
}
