#include "llmc/run/metrics/metrics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

StepRecord record(int step) { return {step, 1.0f / 3.0f, 2.5f, 3e-4f, 1234.5678901234, 0.25, 12.5, 1ull << 40}; }

}   // namespace

TEST_CASE("metrics: lines are JSON with the agreed keys, and null where a value is not finite") {
    CHECK(to_json(record(7)) ==
          "{\"step\":7,\"loss\":0.333333343,\"grad_norm\":2.5,\"lr\":0.000300000014,\"tokens_per_s\":1234.56789,"
          "\"mfu\":0.25,\"step_ms\":12.5,\"memory_bytes\":1099511627776}");
    StepRecord of_several = record(7);
    of_several.waiting = {3, 0.125};
    CHECK(to_json(of_several)
              .ends_with("\"step_ms\":12.5,\"slowest_rank\":3,\"waiting\":0.125,\"memory_bytes\":1099511627776}"));
    of_several.exposed_ms = {{"cp ring", 1.5}, {"dp", 0.25}};
    CHECK(to_json(of_several)
              .ends_with(
                  "\"waiting\":0.125,\"exposed_ms\":{\"cp ring\":1.5,\"dp\":0.25},\"memory_bytes\":1099511627776}"));
    StepRecord of_experts = record(7);
    of_experts.experts = {1.5, 0.25, 0.75, 0.01, 0.002};
    CHECK(to_json(of_experts)
              .ends_with("\"step_ms\":12.5,\"expert_fullest\":1.5,\"expert_emptiest\":0.25,\"expert_entropy\":0.75,"
                         "\"aux_loss\":0.01,\"router_z_loss\":0.002,"
                         "\"memory_bytes\":1099511627776}"));
    of_experts.experts->dropped = 0.125;
    CHECK(to_json(of_experts)
              .ends_with("\"router_z_loss\":0.002,\"expert_dropped\":0.125,\"memory_bytes\":1099511627776}"));
    of_experts.experts->dropped = {};
    of_experts.experts->fullest_rank = {1.25, 1.75, 1};
    CHECK(to_json(of_experts)
              .ends_with("\"router_z_loss\":0.002,\"expert_fullest_rank\":1.75,\"expert_fullest_rank_layer\":1,"
                         "\"expert_fullest_rank_of\":{\"0\":1.25,\"1\":1.75,\"2\":1},\"memory_bytes\":1099511627776}"));
    CHECK(validation_json(20, {1.5f}) == "{\"step\":20,\"val_loss\":1.5}");
    CHECK(validation_json(20, {1.5f, 0.5, {{"a", 2}}, {{"a", 0.75}}}) ==
          "{\"step\":20,\"val_loss\":1.5,\"val_loss_of\":{\"a\":2},\"val_bits_per_byte\":0.5,"
          "\"val_bits_per_byte_of\":{\"a\":0.75}}");

    StepRecord broken = record(1);
    broken.loss = NAN;
    broken.grad_norm = INFINITY;
    broken.mfu.reset();
    auto parsed = nlohmann::json::parse(to_json(broken));
    CHECK(parsed["loss"].is_null());
    CHECK(parsed["grad_norm"].is_null());
    CHECK(parsed["mfu"].is_null());
    CHECK(parsed.size() == 8);
}

TEST_CASE("metrics: nine digits tell floats apart") {
    float value = 2.71828f;
    for (int i = 0; i < 1000; i++) {
        value = std::nextafter(value, 10.0f);
        StepRecord r = record(1);
        r.loss = value;
        CHECK(static_cast<float>(nlohmann::json::parse(to_json(r))["loss"].get<double>()) == value);
    }
}

TEST_CASE("metrics: a fresh run starts empty, a resumed one drops later and torn lines and goes on") {
    TemporaryFolder folder;
    const std::string out = folder / "runs/a";
    auto write_steps = [&](int after, int last) {
        Metrics metrics(real_files(), out, after);
        if (after == 0) metrics.validation(0, {5.0f});
        for (int step = after + 1; step <= last; step++) {
            metrics.step(record(step));
            if (step % 5 == 0) metrics.validation(step, {4.0f});
        }
    };
    auto content = [&](const char* name) { return read_whole(real_files(), out + "/" + name); };
    write_steps(0, 20);
    const std::string metrics = content("metrics.jsonl"), main_log = content("main.log");
    CHECK(main_log.find("s:0 tel:5.0000\ns:0 trl:0.3333 lr:0.000300 norm:2.50\n") == 0);

    for (int cut : {1, 4, 5, 7, 10, 20}) {
        write_steps(0, std::min(cut + 3, 20));
        real_files().append(out + "/metrics.jsonl")->write(bytes_of("{\"step\":2,\"lo"));
        write_steps(cut, 20);
        CHECK(content("metrics.jsonl") == metrics);
        CHECK(content("main.log") == main_log);
    }
    write_steps(0, 20);
    CHECK(content("metrics.jsonl") == metrics);
}

TEST_CASE("metrics: no folder, no files; a full disk is an error that names the file") {
    Metrics nowhere(real_files(), "");
    nowhere.step(record(1));

    TemporaryFolder folder;
    FaultyFiles faulty(real_files(), 8);
    // make; create, append of what it tells the report; create, create, append, append, sync
    Metrics metrics(faulty, folder.path());
    try {
        metrics.step(record(1));
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.exit_code() == 74);
        CHECK(std::string(error.what()).find("metrics.jsonl: write failed: No space left") != std::string::npos);
    }
}

TEST_CASE(
    "metrics: a run that goes back drops later lines and keeps earlier rewinds, which a resumed run makes again") {
    TemporaryFolder folder;
    auto lines = [&] { return read_whole(real_files(), folder / "metrics.jsonl"); };
    const std::string first = "{\"step\":2,\"rewind_from\":4,\"loss\":9,\"grad_norm\":1,\"skipped_samples\":8}\n";
    const std::string second = "{\"step\":2,\"rewind_from\":3,\"loss\":8,\"grad_norm\":1,\"skipped_samples\":4}\n";
    std::string until_2;
    {
        Metrics metrics(real_files(), folder.path());
        for (int step : {1, 2}) metrics.step(record(step));
        until_2 = lines();
        for (int step : {3, 4}) metrics.step(record(step));
        metrics.rewind({2, 4, 9.0f, 1.0f, 8}, StepPhase::next_step);
        CHECK(lines() == until_2 + first);
        metrics.step(record(3));
        metrics.rewind({2, 3, 8.0f, 1.0f, 4}, StepPhase::next_step);
        CHECK(lines() == until_2 + first + second);
        metrics.step(record(3));
    }
    { Metrics resumed(real_files(), folder.path(), 3); }
    CHECK(lines() == until_2 + first + second + to_json(record(3)) + "\n");
    { Metrics resumed(real_files(), folder.path(), 2); }
    CHECK(lines() == until_2);
}

TEST_CASE("metrics: a resumed run says which records are missing, and drops lines that no step of a run writes") {
    TemporaryFolder folder;
    const std::string path = folder / "metrics.jsonl";
    {
        Metrics metrics(real_files(), folder.path());
        for (int step : {1, 2, 3}) metrics.step(record(step));
    }
    const std::string whole = read_whole(real_files(), path);
    {
        const Metrics resumed(real_files(), folder.path(), 3);
        CHECK(resumed.recorded() == 3);
        CHECK(resumed.warnings().empty());
    }
    for (const char* step : {"9223372036854775808", "1e400", "-1", "\"3\"", "2.5", "4294967297"}) {
        CAPTURE(std::string(step));
        write_whole(real_files(), path, whole + "{\"step\":" + step + ",\"loss\":1}\n");
        const Metrics resumed(real_files(), folder.path(), 3);
        CHECK(read_whole(real_files(), path) == whole);
        REQUIRE(resumed.warnings().size() == 1);
        CHECK(resumed.warnings()[0].find("dropped 1 line") != std::string::npos);
        CHECK(resumed.warnings()[0].find(step) != std::string::npos);
        CHECK(resumed.recorded() == 3);
    }
    write_whole(real_files(), path, to_json(record(1)) + "\n");
    CHECK(Metrics(real_files(), folder.path(), 3).recorded() == 1);
    write_whole(real_files(), path, "");
    CHECK(Metrics(real_files(), folder.path(), 3).recorded() == 0);
    real_files().remove_all(path);
    CHECK(Metrics(real_files(), folder.path(), 3).recorded() == 0);
}

TEST_CASE("metrics: every evaluation is a line, which goes where it is to be made again") {
    TemporaryFolder folder;
    const auto lines = [&] { return read_whole(real_files(), folder / "metrics.jsonl"); };
    std::string before;
    {
        Metrics metrics(real_files(), folder.path());
        metrics.step(record(1));
        before = lines();
        metrics.evaluation(1, {"hellaswag", 0.5, 0.25});
        metrics.evaluation(1, {"arc_easy", 0.75, 1.0});
        metrics.evaluation(1, {"arc_challenge", 0.125, 0.0});
        metrics.evaluation(1, {"lambada", 0.25, {}, 12.5});
    }
    const std::string all = before +
                            "{\"step\":1,\"hellaswag\":0.5,\"hellaswag_sum\":0.25}\n"
                            "{\"step\":1,\"arc_easy\":0.75,\"arc_easy_sum\":1}\n"
                            "{\"step\":1,\"arc_challenge\":0.125,\"arc_challenge_sum\":0}\n"
                            "{\"step\":1,\"lambada\":0.25,\"lambada_perplexity\":12.5}\n";
    CHECK(lines() == all);
    CHECK(read_whole(real_files(), folder / "main.log").ends_with("s:1 eval:0.5000\n"));   // HellaSwag's alone
    { Metrics resumed(real_files(), folder.path(), 1, StepPhase::sample); }
    CHECK(lines() == all);
    { Metrics resumed(real_files(), folder.path(), 1, StepPhase::evaluation); }
    CHECK(lines() == before);
}
