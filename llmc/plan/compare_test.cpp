#include "llmc/plan/plan.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/plan/search.h"

TEST_CASE("plan: --compare takes the medians of a run's steps but the first") {
    TemporaryFolder folder;
    auto write = [&](const std::string& lines) { write_whole(real_files(), folder / "metrics.jsonl", lines); };
    auto step = [](int number, double ms) {
        return text("{\"step\":", number, ",\"loss\":5,\"tokens_per_s\":", 1000 / ms, ",\"step_ms\":", ms,
                    ",\"exposed_ms\":{\"dp\":", ms / 10, ",\"ep\":1},\"memory_bytes\":", 1000 + number, "}\n");
    };
    write(step(1, 900) + "{\"step\":1,\"val_loss\":4}\n" + step(2, 10) + step(3, 30) + step(4, 20));
    const MeasuredRun run = measured_run(real_files(), folder / "");
    CHECK(run.steps == 4);
    CHECK(run.step_seconds == doctest::Approx(0.02));
    CHECK(run.tokens_per_second == doctest::Approx(50));
    CHECK(run.memory_bytes == 1004);
    CHECK(run.exposed.at("dp") == doctest::Approx(0.002));
    Plan plan;
    plan.step.groups["dp"].exposed = 0.0015;
    plan.step.seconds = 0.022;
    plan.memory = {{0, 1004, {}}};
    CHECK(comparison_text(plan, run).find(
              "planned           22, measured           20 ms: the plan is off by +10.0%") != std::string::npos);
    const std::string words = comparison_text(plan, run);
    CHECK(words.find("--efficiency 1.1 plans other runs") != std::string::npos);   // the run is faster than its plan
    CHECK(words.find("exposed, dp         planned          1.5, measured            2 ms") != std::string::npos);
    CHECK(words.find("exposed, ep         planned      unknown, measured            1 ms") != std::string::npos);
    plan.step.seconds = 0.016;
    CHECK(comparison_text(plan, run).find("--efficiency 0.8 plans other runs") != std::string::npos);
    write(step(1, 900));
    CHECK_THROWS_AS(measured_run(real_files(), folder / ""), Error);
    write("no JSON\n");
    CHECK_THROWS_AS(measured_run(real_files(), folder / ""), Error);
}

TEST_CASE("plan: the fewest devices that hold a run: so many do, half of them do not") {
    Options o;
    o.model = "gpt3:13B";
    o.seq_len = 2048, o.micro_batch = 1;
    const Machine machine = known_machine("H100");
    const std::optional<int> fewest = fewest_devices(o, machine, 64);
    REQUIRE(fewest.has_value());
    CHECK(*fewest > 1);
    CHECK(!fewest_devices(o, machine, *fewest / 2).has_value());
    o.model = "gpt2:124M", o.seq_len = 1024;
    CHECK(fewest_devices(o, machine, 64) == 1);
}

TEST_CASE("plan: the fewest devices are found with every --ep and --cp, and need not be as many as --ep") {
    const Machine machine = known_machine("H100");
    Options o;
    o.layers = 2, o.heads = 12, o.channels = 768, o.vocab_size = 50257, o.seq_len = 768, o.micro_batch = 1;
    o.architecture = {{"experts", 24}, {"experts-per-token", 2}, {"expert-width", 256}};
    for (const int ep : {1, 2, 3, 6, 8, 24}) {
        CAPTURE(ep);
        o.ep = ep;
        CHECK(fewest_devices(o, machine, 64) == 1);
    }
    o.ep = 1;
    for (const int cp : {2, 3, 6}) {
        CAPTURE(cp);
        o.cp = cp;
        CHECK(fewest_devices(o, machine, 64) == cp);
    }
    o.cp = 1, o.layers = 40, o.channels = 5120, o.heads = 40;   // too large for one
    const std::optional<int> fewest = fewest_devices(o, machine, 64);
    REQUIRE(fewest.has_value());
    CHECK(*fewest > 1);
    o.ep = 3;   // divides no power of two
    CHECK(fewest_devices(o, machine, 64) == fewest);
}
