// Signals to stop and shared work between steps, over several ranks: what all must decide alike, wherever the signal
// comes. Ranks are threads here, so a signal reaches all of them, each at another place of its work.
#include "llmc/run/stopping/agreement.h"

#include <csignal>

#include "llmc/base/stream.h"
#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/telling_files_testing.h"
#include "llmc/run/without_times_testing.h"

namespace {

constexpr int vocab = 61, T = 16;

// Multiple-choice questions about nothing.
std::vector<Question> questions(int count) {
    std::vector<Question> result;
    for (int q = 0; q < count; q++) {
        Question question;
        const int completions = 2 + q % 3;
        question.label = q % completions;
        for (int t = 0; t < 2 + q % 5; t++) question.context.push_back((7 * q + 3 * t) % vocab);
        for (int c = 0; c < completions; c++) {
            question.completions.emplace_back();
            for (int t = 0; t < 1 + (q + c) % 4; t++) {
                question.completions.back().push_back((11 * q + 5 * c + t * t) % vocab);
            }
        }
        result.push_back(question);
    }
    return result;
}

StageOptions shape(const TestRank& me, int zero) {
    StageOptions options;
    options.B = 3;
    options.T = T;
    options.matmul.workspace_bytes = 1 << 16;
    options.place = {me.world.mesh(), me.world.at(), zero};
    return options;
}

TrainingGroups groups_of(TestRank& me) {
    Communicator* zero = me.world.group(zero_axes);
    return {zero ? zero : &me.all, &me.all, zero ? zero : &me.all};
}

// A run of four steps with validation and questions after every second, on three ranks, into `output`; continued from
// the newest checkpoint there. `tell`: whenever the first rank has written a record. Returns how it ended.
RunEnd run(const std::string& data, const std::string& output, int zero,
           const std::function<void(StopSignals&)>& tell) {
    StopSignals signals;
    RunEnd end{};
    real_files().make_folders(output);
    on_ranks(3, [&](TestRank& me) {
        Options options;
        options.layers = 2, options.heads = 2, options.channels = 32, options.seq_len = T, options.micro_batch = 3;
        options.total_batch = 18 * T, options.max_steps = 4, options.lr = 1e-3f, options.checkpoint_every = 4;
        options.val_every = 2, options.val_max_batches = 120, options.sample_every = 0, options.output_dir = output;
        fit_to_ranks(options, 3);
        Stage model(custom_model_config(2, 2, 32, T, vocab), shape(me, zero), me.arena, me.stream);
        initialize_parameters(model.parameters(), options.seed, model.stream());
        Step step(model, {}, me.arena, groups_of(me));
        std::vector<std::unique_ptr<Evaluation>> evaluations;
        evaluations.push_back(std::make_unique<Evaluation>(step, questions(20)));
        std::vector<PassedOver> passed_over;
        const auto found = newest_checkpoint(real_files(), output, passed_over);
        RunState state;
        if (found) state = load_training_state(real_files(), found->path, tensors_of(step), me.stream);
        TellingFiles files(real_files(), [&] { tell(signals); });
        const TokenSet tokens(real_files(), "--train-data", data, T, vocab);
        const Log log(false);
        Metrics metrics(files, me.rank() == 0 ? output : "", state.step, state.next);
        Agreement agreement(me.arena, groups_of(me).everyone(), &me.world, signals, me.stream);
        Trainer trainer({options, log, me.arena, step, tokens, &tokens, files, metrics, agreement, nullptr,
                         &evaluations, "", options.max_steps, 0.0, groups_of(me), &me.world});
        if (found) trainer.restore(state);
        const RunEnd own = trainer.run();
        if (me.rank() == 0) end = own;
    });
    return end;
}

std::string records(const std::string& output) {
    const std::string lines = read_whole(real_files(), output + "/metrics.jsonl");
    return without_times(lines) + read_whole(real_files(), output + "/main.log");
}

}   // namespace

TEST_CASE("agreement: votes to stop reach every rank, with a step's sums and between steps") {
    for (int zero : {0, 3}) {
        on_ranks(3, [&](TestRank& me) {
            Stage model(custom_model_config(2, 2, 32, T, vocab), shape(me, zero), me.arena, me.stream);
            initialize_parameters(model.parameters(), 1, model.stream());
            Step step(model, {}, me.arena, groups_of(me));
            auto read = [](int, const MicroBatch& to) {
                std::fill(to.tokens.begin(), to.tokens.end(), 1);
                std::fill(to.targets.begin(), to.targets.end(), 2);
            };
            for (const std::vector<int>& asking : {std::vector<int>{}, {1}, {2}, {0, 2}}) {
                const bool asks = std::count(asking.begin(), asking.end(), me.rank()) > 0;
                step.gradients(one_stage_schedule(1), read, 1.0f / (9 * T),
                               [&] { return StopVotes::of(me.rank(), asks); });
                const StopVotes stop = step.result().stop;
                me.require(stop.asking == static_cast<double>(asking.size()), stop.asking, " votes");
                me.require(stop.any() == !asking.empty(), "another decision");
                if (asking.size() == 1) me.require(stop.words() == text("a signal to rank ", asking[0]), stop.words());
                if (asking.size() == 2) me.require(stop.words() == "signals to 2 ranks", stop.words());
            }
            const StopSignals signals;
            Agreement agreement(me.arena, groups_of(me).all, nullptr, signals, me.stream);
            me.require(agreement.sum(me.rank() + 0.5) == 4.5, "another sum");
            me.require(!agreement.stop_asked(), "nobody asked");
        });
    }
}

TEST_CASE("evaluation: ranks that share the questions answer as many right as one") {
    for (int count : {1, 20}) {
        int expected = -1;
        for (int ranks : {1, 2, 3, 4}) {
            for (int zero : {0, 3}) {
                int right = -1;
                on_ranks(ranks, [&](TestRank& me) {
                    Stage model(custom_model_config(2, 2, 32, T, vocab), shape(me, zero), me.arena, me.stream);
                    initialize_parameters(model.parameters(), 9, model.stream());
                    Step step(model, {}, me.arena, groups_of(me));
                    Evaluation evaluation(step, questions(count));
                    const StopSignals signals;
                    Agreement agreement(me.arena, groups_of(me).all, nullptr, signals, me.stream);
                    const auto result = evaluation.run(agreement);
                    me.require(result && result->questions == count, "questions were lost");
                    if (me.rank() == 0) right = result->right;
                });
                if (expected < 0) expected = right;
                INFO(count, " questions, ", ranks, " ranks, ZeRO ", zero);
                CHECK(right == expected);
            }
        }
        if (count > 1) CHECK((expected > 0 && expected < count));
    }
}

TEST_CASE("evaluation: ranks that share a question's tokens answer as many right as one") {
    const int count = 20;
    int expected = -1;
    struct Shared {
        MeshShape mesh;
        int ulysses;
    };
    for (const Shared shared : {Shared{{}, 1}, {{1, 1, 2, 1}, 1}, {{1, 2, 2, 1}, 2}, {{1, 1, 4, 1}, 2}}) {
        const MeshShape mesh = shared.mesh;
        int right = -1;
        on_ranks(mesh, [&](TestRank& me) {
            StageOptions options = shape(me, 0);
            options.ulysses = shared.ulysses;
            options.groups = stage_groups(me.world, options.ulysses);
            Stage model(custom_model_config(2, 2, 32, T, vocab), options, me.arena, me.stream);
            initialize_parameters(model.parameters(), 9, model.stream());
            Step step(model, {}, me.arena, groups_of(me));
            Evaluation evaluation(step, questions(count));
            const StopSignals signals;
            Agreement agreement(me.arena, groups_of(me).all, nullptr, signals, me.stream);
            const auto result = evaluation.run(agreement);
            me.require(result && result->questions == count, "questions were lost");
            if (me.rank() == 0) right = result->right;
        });
        if (expected < 0) expected = right;
        INFO("dp ", mesh.dp, ", cp ", mesh.cp);
        CHECK(right == expected);
    }
    CHECK((expected > 0 && expected < count));
}

TEST_CASE("evaluation: ranks share rows of several lengths, and each question keeps its score") {
    std::vector<Question> words;
    for (int q = 0; q < 11; q++) {
        words.push_back({0, {}, {{q, q + 1, 3}}});
        for (int t = 0; t < 1 + q * 70 % 230; t++) words.back().context.push_back((7 * q + t * t) % vocab);
    }
    double expected = 0;
    for (const MeshShape& mesh : {MeshShape{}, MeshShape{1, 3, 1, 1}, MeshShape{1, 1, 2, 1}, MeshShape{1, 2, 2, 1}}) {
        double perplexity = 0;
        on_ranks(mesh, [&](TestRank& me) {
            StageOptions options = shape(me, 0);
            options.B = 1, options.T = 192;
            options.groups = stage_groups(me.world, 1);
            Stage model(custom_model_config(1, 2, 32, 192, vocab), options, me.arena, me.stream);
            initialize_parameters(model.parameters(), 9, model.stream());
            Step step(model, {}, me.arena, groups_of(me));
            Evaluation evaluation(step, words, question_sources[5], &me.arena);
            const StopSignals signals;
            Agreement agreement(me.arena, groups_of(me).all, nullptr, signals, me.stream);
            const double found = evaluation.run(agreement)->perplexity.value();
            if (me.rank() == 0) perplexity = found;
            me.require(evaluation.left_out().questions == 2, evaluation.left_out().questions, " lose tokens");
        });
        if (expected == 0) expected = perplexity;
        INFO("dp ", mesh.dp, ", cp ", mesh.cp);
        CHECK(perplexity == doctest::Approx(expected).epsilon(sizeof(floatX) == 4 ? 1e-6 : 1e-2));
    }
}

TEST_CASE("agreement: many values are summed, each with its own") {
    on_ranks(3, [&](TestRank& me) {
        const StopSignals signals;
        Agreement agreement(me.arena, &me.all, nullptr, signals, me.stream);
        std::vector<double> values(700);
        for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<double>(i) + me.rank();
        agreement.sum(values);
        for (std::size_t i = 0; i < values.size(); i++) {
            me.require(values[i] == 3 * static_cast<double>(i) + 3, "value ", i, " is ", values[i]);
        }
    });
}

TEST_CASE("trainer: a signal after any record of three ranks, and the resumed run leaves the records of an uncut one") {
    TemporaryFolder folder;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < 3000; i++) ids.push_back(i * i % vocab);
    write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, ids);
    int all = 0;
    const auto whole = folder / "whole";
    CHECK(run(folder / "tokens.bin", whole, 3, [&](StopSignals&) { all++; }) == RunEnd::finished);
    CHECK(all == 4 + 3 + 2);
    int in_the_midst = 0;
    for (int at = 1; at <= all; at++) {
        INFO("a signal after record ", at);
        const std::string output = folder / text("cut ", at);
        int seen = 0;
        const RunEnd end = run(folder / "tokens.bin", output, 3, [&](StopSignals& signals) {
            if (++seen == at) signals.note(SIGTERM);
        });
        CHECK(end == (at < all ? RunEnd::signal : RunEnd::finished));
        in_the_midst += seen == at && at < all;   // nothing more was written: not even the validation at hand
        CHECK(run(folder / "tokens.bin", output, 3, [](StopSignals&) {}) == RunEnd::finished);
        CHECK(records(output) == records(whole));
    }
    CHECK(in_the_midst >= 4);
}

TEST_CASE("trainer: --check-replicas K ends the run within K steps of a bit that flips, with rank and tensor named") {
    TemporaryFolder folder;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < 3000; i++) ids.push_back(i * i % vocab);
    write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, ids);
    for (int ranks : {2, 3}) {
        for (int every : {0, 3}) {
            const std::string output = folder / text(ranks, " ranks, every ", every);
            real_files().make_folders(output);
            on_ranks(ranks, [&](TestRank& me) {
                Options options;
                options.layers = 2, options.heads = 2, options.channels = 32, options.seq_len = T;
                options.micro_batch = 3, options.total_batch = 18 * T, options.max_steps = 7;
                options.val_every = options.sample_every = 0, options.output_dir = output;
                options.check_replicas = every;
                fit_to_ranks(options, ranks);
                Stage model(custom_model_config(2, 2, 32, T, vocab), shape(me, 0), me.arena, me.stream);
                initialize_parameters(model.parameters(), options.seed, model.stream());
                Step step(model, {}, me.arena, groups_of(me));
                // in the exponent of a moment, from 0 to 2: parameters would get their masters' values
                if (me.rank() == 1) {
                    const float flipped = 2;
                    CUDA_CHECK(cudaMemcpyAsync(step.optimizer().state("m").tensor("ln_1.weight", 1), &flipped,
                                               sizeof flipped, cudaMemcpyHostToDevice, me.stream));
                    wait_for(me.stream);
                }
                const TokenSet tokens(real_files(), "--train-data", folder / "tokens.bin", T, vocab);
                const StopSignals signals;
                const Log log(false);
                Metrics metrics(real_files(), me.rank() == 0 ? output : "");
                Agreement agreement(me.arena, groups_of(me).everyone(), &me.world, signals, me.stream);
                Trainer trainer({options, log, me.arena, step, tokens, nullptr, real_files(), metrics, agreement,
                                 nullptr, nullptr, "", options.max_steps, 0.0, groups_of(me), &me.world});
                std::string said = "nothing";
                try {
                    trainer.run();
                } catch (const Error& error) {
                    me.require(error.kind() == ErrorKind::resumable, "exit code: ", error.what());
                    said = error.what();
                }
                const std::string expected = every == 0 ? "nothing"
                                             : ranks == 2
                                                 ? "after step 3 ranks 0, 1 should have the same m h.1.ln_1.weight"
                                                 : "after step 3 rank 1 has another m h.1.ln_1.weight than ranks 0, 2";
                me.require(said.find(expected) != std::string::npos, "said: ", said);
            });
            CHECK(list_checkpoints(real_files(), output).size() == (every == 0 ? 1 : 0));   // none with the bit in it
        }
    }
}
