// Ranks that have met other problems, or have made another choice, multiply alike and save what all of them use.
#include "llmc/run/choices/matmul_choices.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "llmc/cuda_on_cpu/blas/gemm.h"
#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/model/download_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/telling_files_testing.h"

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

namespace {

// Algorithms and results of a rank in a run of two.
struct Ended {
    std::vector<MatmulAlgorithm> used;
    std::vector<std::vector<float>> weights;
    std::vector<MatmulAlgorithm> in_first_step;
    bool still_tries = false;
};

// Two steps of two ranks, of two micro-batches each. `prepare`: each rank's matmuls, before the run. `faster`: of how
// many calls of the timer rank 0 finds others faster than the heuristic's first; rank 1 finds none. Matmuls beside
// collectives leave three multiprocessors free.
std::vector<Ended> run_of_two(const MatmulOptions& how, const std::function<void(int rank, Matmul& matmul)>& prepare,
                              int faster = INT_MAX, OptimizerKind optimizer = OptimizerKind::adamw) {
    constexpr int T = 16, vocab = 61;
    const SharedFolder folder;
    write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, std::vector<std::uint32_t>(500, 3));
    std::vector<Ended> result(2);
    on_ranks(2, [&](TestRank& me) {
        Options options;
        options.layers = 2, options.heads = 2, options.channels = 32, options.seq_len = T, options.micro_batch = 1;
        options.total_batch = 4 * T, options.max_steps = 2, options.val_every = 0, options.sample_every = 0;
        options.checkpoint_every = 2, options.output_dir = folder / "run";
        fit_to_ranks(options, 2);
        StageOptions shape;
        shape.B = 1, shape.T = T;
        shape.place = {me.world.mesh(), me.world.at(), 0};
        shape.matmul = how;
        shape.comm_sms = 3;
        if (how.tries > 1) {
            shape.matmul.timer = [most = me.rank() == 0 ? faster : 0, asked = 0](const std::function<void()>& work,
                                                                                 cudaStream_t) mutable {
                work();
                return asked++ < most ? std::pow(0.9, asked) : 2.0;   // each faster than those before
            };
        }
        Stage model(custom_model_config(2, 2, 32, T, vocab), shape, me.arena, me.stream);
        initialize_parameters(model.parameters(), options.seed, model.stream());
        OptimizerOptions update;
        update.optimizer = optimizer;
        Step step(model, update, me.arena, training_groups(me.world));
        prepare(me.rank(), model.matmul());
        StopSignals signals;
        const Log log(false);
        const TokenSet tokens(real_files(), "--train-data", folder / "tokens.bin", T, vocab);
        Ended& mine = result[static_cast<std::size_t>(me.rank())];
        TellingFiles telling(real_files(), [&] {   // as it writes down the first step
            if (mine.in_first_step.empty()) mine.in_first_step = model.matmul().algorithms();
        });
        Metrics metrics(telling, me.rank() == 0 ? options.output_dir : folder / "of_rank_1", 0);
        const TrainingGroups groups = training_groups(me.world);
        Agreement agreement(me.arena, groups.everyone(), &me.world, signals, me.stream);
        Trainer trainer({options, log, me.arena, step, tokens, nullptr, real_files(), metrics, agreement, nullptr,
                         nullptr, "", 2, 0.0, groups, &me.world});
        me.require(trainer.run() == RunEnd::finished, "not finished");
        mine.used = model.matmul().algorithms();
        mine.still_tries = model.matmul().tries_algorithms();
        for (int i = 0; i < model.table().size(); i++)
            mine.weights.push_back(download_tensor(model.parameters(), i, me.stream));
        const std::string path = options.output_dir + "/" + checkpoint_name(2) + "/" + kMatmulChoicesFile;
        if (me.rank() == 0)
            me.require(read_whole(real_files(), path) == matmul_choices_text(model.matmul()), "saved others");
    });
    return result;
}

}   // namespace

TEST_CASE("matmul choices: ranks of a run share theirs, and its checkpoint has all of them") {
    if (!ranks_are_threads()) return;   // processes that are told of by a test tell each other nothing
    const MatmulAlgorithm foreign{"a problem of the last stage", {1, 1}, 0};
    const std::vector<Ended> ended = run_of_two({}, [&](int rank, Matmul& matmul) {
        if (rank == 1) matmul.use_algorithms(std::vector{foreign});
    });
    CHECK(ended[0].used == ended[1].used);
    CHECK(std::count(ended[0].used.begin(), ended[0].used.end(), foreign) == 1);
}

TEST_CASE("matmul choices: they are timed before the first step, the lowest rank's taken, and nothing is left of it") {
    if (!ranks_are_threads()) return;
    host::offer_algorithms(3);
    const std::vector<Ended> timed = run_of_two({.tries = 3}, [](int, Matmul&) {});
    CHECK(timed[0].used == timed[1].used);
    CHECK(!timed[0].still_tries);
    CHECK(timed[1].in_first_step == timed[0].used);
    CHECK(std::ranges::count_if(timed[0].used, [](const MatmulAlgorithm& one) { return one.words[1] != 0; }) > 5);
    // given the algorithms from the start, without timing
    const std::vector<Ended> given = run_of_two({}, [&](int, Matmul& matmul) { matmul.use_algorithms(timed[0].used); });
    host::offer_algorithms(1);
    CHECK(given[0].used == timed[0].used);
    CHECK(given[0].weights == timed[0].weights);
    CHECK(given[1].weights == timed[1].weights);
}

TEST_CASE("matmul choices: gradients of weights are timed before all other matmuls, so that these wait if time is up") {
    if (!ranks_are_threads()) return;
    host::offer_algorithms(3);
    auto found = [](int faster) {
        const std::vector<Ended> ended = run_of_two(
            {.tries = 3}, [](int, Matmul&) {}, faster);
        std::pair<int, int> count;   // those of weights, and others, for which another than the first was taken
        for (const MatmulAlgorithm& one : ended[0].used) {
            if (one.words[1] != 0) (one.problem.starts_with("weight") ? count.first : count.second)++;
        }
        return count;
    };
    const std::pair<int, int> few = found(20), all = found(INT_MAX);
    host::offer_algorithms(1);
    CHECK(few.first > 2);
    CHECK(few.second == 0);
    CHECK(all.first > few.first);
    CHECK(all.second > 2);
}

TEST_CASE("matmul choices: Muon's products are timed too, for all multiprocessors, and nothing is left of it") {
    if (!ranks_are_threads()) return;
    host::offer_algorithms(3);
    const auto prepare = [](int, Matmul&) {};
    const std::vector<Ended> adamw = run_of_two({.tries = 3}, prepare),
                             muon = run_of_two({.tries = 3}, prepare, INT_MAX, OptimizerKind::muon);
    const std::vector<Ended> given = run_of_two(
        {}, [&](int, Matmul& matmul) { matmul.use_algorithms(muon[0].used); }, INT_MAX, OptimizerKind::muon);
    host::offer_algorithms(1);
    std::set<std::string> of_passes;
    for (const MatmulAlgorithm& one : adamw[0].used) of_passes.insert(one.problem);
    const auto leaving = [](const std::string& problem) { return problem.find(" leaving 3") != std::string::npos; };
    CHECK(std::ranges::any_of(of_passes, leaving));
    int of_update = 0;
    for (const MatmulAlgorithm& one : muon[0].used) {
        if (of_passes.contains(one.problem)) continue;
        of_update++;
        INFO(one.problem);
        CHECK(one.words[1] != 0);   // a later one than the heuristic's first
        CHECK(!leaving(one.problem));
    }
    CHECK(of_update > 5);   // gram, square and next matrix, of several sizes
    CHECK(muon[1].in_first_step == muon[0].used);
    CHECK(given[0].used == muon[0].used);
    CHECK(given[0].weights == muon[0].weights);
    CHECK(given[1].weights == muon[1].weights);
}
