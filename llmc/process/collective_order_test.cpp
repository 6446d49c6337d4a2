#include "llmc/process/collective_order.h"

#include <doctest/doctest.h>

namespace {

CollectiveRecord call(std::vector<int> members, std::string what, std::string where) {
    return {std::move(members), std::move(what), std::move(where)};
}

}   // namespace

TEST_CASE("collective order: the same order on all ranks, in whatever order it is told") {
    CollectiveOrder order;
    const CollectiveRecord a = call({0, 1, 2}, "all-reduce of 4 fp32, sum", "number 1 of group all");
    const CollectiveRecord b = call({0, 2}, "all-gather of 8 bf16", "number 1 of group tp");
    for (int turn = 0; turn < 3; turn++) {
        for (int rank : {2, 0}) {
            CHECK(!order.add(rank, a));
            CHECK(!order.add(rank, b));
        }
        CHECK(!order.add(1, a));   // rank 1 knows nothing of b
    }
}

TEST_CASE("collective order: opposite orders on two communicators are named") {
    CollectiveOrder order;
    const CollectiveRecord a = call({0, 1}, "all-reduce of 4 fp32, sum", "number 7 of group all");
    const CollectiveRecord b = call({0, 1}, "all-gather of 8 bf16", "number 2 of group zero");
    CHECK(!order.add(0, a));
    CHECK(!order.add(0, b));
    const std::optional<std::string> difference = order.add(1, b);
    REQUIRE(difference);
    CHECK(
        *difference ==
        "collectives are called in different orders: rank 1 calls all-gather of 8 bf16 (number 2 of group zero), where "
        "rank 0 calls all-reduce of 4 fp32, sum (number 7 of group all)");
}

TEST_CASE("collective order: another size in one communicator is named") {
    CollectiveOrder order;
    CHECK(!order.add(2, call({0, 1, 2}, "all-reduce of 4 fp32, sum", "number 7 of group all")));
    CHECK(order.add(1, call({0, 1, 2}, "all-reduce of 5 fp32, sum", "number 7 of group all")));
}

TEST_CASE("collective order: logs travel as text") {
    CollectiveLog log;
    CHECK(log.take().empty());
    log.add(call({0, 3}, "broadcast of 5 int32 from rank 1", "number 9 of group pp"));
    log.add(call({1}, "x", "y"));
    const std::vector<CollectiveRecord> records = CollectiveLog::parse(log.take());
    REQUIRE(records.size() == 2);
    CHECK(records[0].members == std::vector<int>{0, 3});
    CHECK(records[0].what == "broadcast of 5 int32 from rank 1");
    CHECK(records[1].where == "y");
    CHECK(log.take().empty());
}
