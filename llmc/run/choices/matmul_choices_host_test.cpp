// Ranks that have met other problems, or have made another choice, multiply alike and save what all of them use.
#include "llmc/run/choices/matmul_choices.h"

#include <doctest/doctest.h>

#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_test.h"
#include "llmc/process/on_ranks_test.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/trainer.h"

namespace {

std::string choices(const std::string& machine, const std::string& algorithms) {
    return R"({"device": ")" + machine + R"(", "cublaslt": 7, "algorithms": [)" + algorithms + "]}";
}
std::string choice(const std::string& problem, int word) {
    return text(R"({"problem": ")", problem, R"(", "workspace_bytes": 256, "words": [)", word,
                ", 0, 0, 0, 0, 0, 0, 0]}");
}

}   // namespace

TEST_CASE("matmul choices: of each problem that of the lowest rank that has it") {
    const std::string merged =
        merged_matmul_choices({choices("gpu", choice("b", 1)), choices("gpu", choice("a", 2) + "," + choice("b", 3)),
                               choices("gpu", choice("a", 4) + "," + choice("c", 5))});
    const std::string all = choice("a", 2) + "," + choice("b", 1) + "," + choice("c", 5);
    CHECK(merged == merged_matmul_choices({choices("gpu", all)}));
    CHECK_THROWS_WITH_AS(merged_matmul_choices({choices("gpu", ""), choices("other gpu", "")}),
                         doctest::Contains("rank 1 multiplies with other gpu, cuBLASLt 7, rank 0 with gpu"), Error);
}

TEST_CASE("matmul choices: ranks of a run share theirs, and its checkpoint has all of them") {
    if (!ranks_are_threads()) return;   // processes that are told of by a test tell each other nothing
    constexpr int T = 16, vocab = 61;
    const SharedFolder folder;
    write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, std::vector<std::uint32_t>(500, 3));
    const MatmulAlgorithm foreign{"a problem of the last stage", {1, 1}, 0};
    std::vector<std::vector<MatmulAlgorithm>> used(2);
    on_ranks(2, [&](TestRank& me) {
        Options options;
        options.layers = 2, options.heads = 2, options.channels = 32, options.seq_len = T, options.micro_batch = 1;
        options.total_batch = 2 * T, options.max_steps = 2, options.val_every = 0, options.sample_every = 0;
        options.checkpoint_every = 2, options.output_dir = folder / "run";
        fit_to_ranks(options, 2);
        StageOptions shape;
        shape.B = 1, shape.T = T;
        shape.place = {me.world.mesh(), me.world.at(), 0};
        Stage model(custom_model_config(2, 2, 32, T, vocab), shape, me.arena, me.stream);
        model.initialize(options.seed);
        Step step(model, {}, me.arena, me.world.training_groups());
        if (me.rank() == 1) model.matmul().use_algorithms(std::vector{foreign});
        StopSignals signals;
        const Log log(false);
        const TokenSet tokens(real_files(), "--train-data", folder / "tokens.bin", T, vocab);
        Metrics metrics(real_files(), me.rank() == 0 ? options.output_dir : "", 0);
        Trainer trainer({options, log, me.arena, step, tokens, nullptr, real_files(), metrics, signals, nullptr,
                         nullptr, "", 2, 0.0, me.world.training_groups(), &me.world});
        me.require(trainer.run() == RunEnd::finished, "not finished");
        used[static_cast<std::size_t>(me.rank())] = model.matmul().algorithms();
        const std::string path = options.output_dir + "/" + checkpoint_name(2) + "/" + kMatmulChoicesFile;
        if (me.rank() == 0)
            me.require(read_whole(real_files(), path) == matmul_choices_text(model.matmul()), "saved others");
    });
    CHECK(used[0] == used[1]);
    CHECK(std::count(used[0].begin(), used[0].end(), foreign) == 1);
}
