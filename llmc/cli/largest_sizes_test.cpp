// Sizes at the ends of their ranges, two at a time: what is computed from them is right, or they are refused by name.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/cli/command_line.h"
#include "llmc/plan/memory_plan.h"

namespace {

struct Size {
    const char* flag;
    const char* value;
};
constexpr Size kExtremes[] = {
    {"--micro-batch", "1048576"},
    {"--seq-len", "16777216"},
    {"--total-batch", "1099511627776"},
    {"--total-batch", "274877907008"},   // of one sequence of 64 tokens: 2^32 + 2^0 micro-batches
    {"--batch-schedule", "5:274877907008"},
    {"--batch-schedule", "5:9223372036854775807"},
    {"--max-steps", "2147483647"},
    {"--val-max-batches", "2147483647"},
    {"--lr-batch", "1099511627776"},
    {"--layers", "200"},
    {"--heads", "10000"},
    {"--channels", "1048576"},
    {"--vocab-size", "16777216"},
    {"--mlp-width", "16777216"},
    {"--mlp-width", "1000000000000000000"},
    {"--head-size", "1000000000000000000"},
    {"--experts", "1000000000000000000"},
    {"--experts", "16"},
    {"--experts", "65536"},
    {"--dp", "16384"},
    {"--tp", "4096"},
    {"--cp", "4096"},
    {"--pp", "64"},
    {"--zero-group", "2147483647"},
};

// Returns the refusal of --print-memory with these options; empty: they are planned.
std::string refusal(const std::vector<Size>& sizes, PlannedRun& run) {
    std::vector<std::string> arguments{"--print-memory", "1",   "--layers",    "2",   "--heads",       "4",
                                       "--channels",     "64",  "--seq-len",   "64",  "--micro-batch", "1",
                                       "--vocab-size",   "512", "--recompute", "none"};
    for (const Size& size : sizes) arguments.insert(arguments.end(), {size.flag, size.value});
    try {
        run = planned_run(parse_command_line(arguments).options);
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        return error.message();
    }
}

// Checks a planned run's numbers against the same in floating point.
void check_numbers(const PlannedRun& run) {
    const Options& o = run.options;
    const double step = o.micro_steps() * static_cast<double>(o.micro_batch) * o.seq_len * o.dp;
    CHECK(step == static_cast<double>(o.tokens_per_step()));
    const double tokens = static_cast<double>(o.tokens_by_step().sum(0, std::max(1, o.max_steps)));
    CHECK(tokens >= static_cast<double>(o.tokens_per_step()) * std::min(4, std::max(1, o.max_steps)));
    if (o.micro_steps() > 1 << 16) return;   // lists of so many actions take long
    const ModelConfig& c = run.config;
    const double ranks = static_cast<double>(o.tp) * o.cp * o.pp,
                 kept = 2.0 * o.micro_batch * o.seq_len * static_cast<double>(c.channels * c.layers) / ranks,
                 weights = 2.0 * static_cast<double>(c.channels * c.channels * c.layers) / ranks;
    const double bytes = static_cast<double>(fullest_rank(run, 0, Recompute::none).high_water());
    CHECK(bytes >= kept);
    CHECK(bytes >= weights);
    CHECK(bytes < 4e18);
}

}   // namespace

TEST_CASE("options: sizes at the ends of their ranges, two at a time, are computed with or refused by name") {
    int planned = 0, refused = 0;
    PlannedRun run{};
    for (std::size_t i = 0; i < std::size(kExtremes); i++) {
        for (std::size_t j = i; j < std::size(kExtremes); j++) {
            const std::vector<Size> sizes{kExtremes[i], kExtremes[j]};
            const std::string given = text(sizes[0].flag, " ", sizes[0].value, " ", sizes[1].flag, " ", sizes[1].value);
            CAPTURE(given);
            const std::string why = refusal(sizes, run);
            if (why.empty()) {
                planned++;
                check_numbers(run);
            } else {
                refused++;
                const auto named = [&](const char* word) { return why.find(word) != std::string::npos; };
                CHECK_MESSAGE((named("--") || named("not a model")), why);
            }
        }
    }
    MESSAGE(planned << " planned, " << refused << " refused");
    CHECK(planned > 20);
    CHECK(refused > 20);
}

TEST_CASE("options: micro-batches that wrap are refused with the largest total batch that works") {
    PlannedRun run{};
    auto check = [&](const std::vector<Size>& sizes, const std::string& words) {
        const std::string why = refusal(sizes, run);
        CHECK_MESSAGE(why.find(words) != std::string::npos, why);
    };
    check({{"--total-batch", "274877907008"}},
          "--total-batch 274877907008: 4294967297 micro-batches of 64 tokens in a "
          "step, expected at most 16777216");
    check({{"--batch-schedule", "5:274877907008"}}, "--batch-schedule: 274877907008: 4294967297 micro-batches");
    check({{"--total-batch", "274877906944"}, {"--dp", "16"}, {"--pp", "2"}}, "expected at most 8388608");
    check({{"--micro-batch", "1048576"}, {"--seq-len", "16777216"}},
          "--micro-batch 1048576 --seq-len 16777216: 17592186044416 tokens, expected at most 2147483647");
    check({{"--max-steps", "2147483647"}, {"--total-batch", "1099511627776"}},
          "--max-steps 2147483647: with "
          "1099511627776 tokens a step");
    check({{"--total-batch", "1073741824"}}, "");   // 2^24 micro-batches
    CHECK(run.options.micro_steps() == 1 << 24);
}
