#include "llmc/cuda_on_cpu/clock/trace.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "llmc/base/error.h"

using host::RecordedStep;
using host::Recording;

namespace {

// Computes for `seconds` (as flops), then exchanges with the other rank on a stream of its own.
Recording rank_of_two(double flops) {
    using Kind = RecordedStep::Kind;
    Recording recording;
    recording.push_back({Kind::operation, 1, 0, "gelu kernel<float>", "", 0, {flops, 0, {}}});
    recording.push_back({Kind::event_recorded, 1, 7, "", "", 0, {}});
    recording.push_back({Kind::event_awaited, 2, 7, "", "", 0, {}});
    recording.push_back({Kind::operation, 2, 0, "all-reduce", "", 0, {0, 0, {{42, 2, 1.0 / 3, 1.0 / 7}}}});
    recording.push_back({Kind::host_waited_for_stream, 2, 0, "", "", 0, {}});
    return recording;
}

host::CostModel costs() {
    host::CostModel result;
    result.seconds_per_flop = result.seconds_per_byte = result.seconds_per_exchanged_byte = 1;
    result.seconds_per_exchange = 2;
    return result;
}

}   // namespace

TEST_CASE("trace: a recording as text and back is the same") {
    const Recording original = rank_of_two(0.1), copy = host::recording_from(host::to_text(original));
    REQUIRE(copy.size() == original.size());
    for (std::size_t i = 0; i < copy.size(); i++) {
        const RecordedStep &a = copy[i], &b = original[i];
        CHECK(a.kind == b.kind);
        CHECK(a.stream == b.stream);
        CHECK(a.record == b.record);
        CHECK(a.name == b.name);
        CHECK(a.work.flops == b.work.flops);
        REQUIRE(a.work.exchanges.size() == b.work.exchanges.size());
        for (std::size_t k = 0; k < a.work.exchanges.size(); k++) {
            CHECK(a.work.exchanges[k].key == b.work.exchanges[k].key);
            CHECK(a.work.exchanges[k].sends == b.work.exchanges[k].sends);
            CHECK(a.work.exchanges[k].receives == b.work.exchanges[k].receives);
        }
    }
    CHECK(host::to_text(copy) == host::to_text(original));
    CHECK_THROWS_AS(host::recording_from("9 1 0 0 0 0 x\n"), Error);
    CHECK_THROWS_AS(host::recording_from("0 1 0 0 0 3 1 2 3\n"), Error);
}

TEST_CASE("trace: ranks are processes, streams threads, operations lie where the replay has them") {
    const auto json = nlohmann::json::parse(host::chrome_trace({rank_of_two(1), rank_of_two(4)}, costs()));
    int operations = 0, waits = 0;
    for (const auto& event : json.at("traceEvents")) {
        if (event.at("ph") == "M") continue;
        operations++;
        const std::string name = event.at("name");
        if (name == "all-reduce") {
            CHECK(event.at("tid") == 2);
            CHECK(event.at("ts").get<double>() == doctest::Approx(4e6));
            CHECK(event.at("dur").get<double>() == doctest::Approx((2 + 1.0 / 3) * 1e6));
        } else if (name == "waiting for all-reduce") {
            waits++;
            CHECK(event.at("pid") == 0);
            CHECK(event.at("ts").get<double>() == doctest::Approx(1e6));
            CHECK(event.at("dur").get<double>() == doctest::Approx(3e6));
        }
    }
    // Checks what every viewer wants of an event, and a process for each rank
    std::set<int> processes;
    for (const auto& event : json.at("traceEvents")) {
        processes.insert(event.at("pid").get<int>());
        CHECK(event.at("tid").is_number_integer());
        if (event.at("ph") == "M") continue;
        CHECK(event.at("ph") == "X");
        CHECK(event.at("ts").get<double>() >= 0);
        CHECK(event.at("dur").get<double>() >= 0);
    }
    CHECK(processes == std::set<int>{0, 1});
    CHECK(operations == 2 + 2 + 1);
    CHECK(waits == 1);
    CHECK(json.at("traceEvents")[2].at("args").at("name") == "communication (stream 2)");
}
