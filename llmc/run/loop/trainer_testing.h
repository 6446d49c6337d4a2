// For tests: a run of a tiny model as main makes it, on data of its own.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/model/download_testing.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/save_training_state_testing.h"

// On a GPU the words of algorithms are the library's secret, and an allocation takes whole granules, beside which a
// tiny model is nothing.
#define SKIP_ON_A_GPU(why)                  \
    if (stand_in() == nullptr) {            \
        MESSAGE("SKIPPED on a GPU: ", why); \
        return;                             \
    }

namespace trainer_testing {

constexpr int kVocab = 61;

inline Options tiny_options(const std::string& folder) {
    Options options;
    options.layers = 2, options.heads = 2, options.channels = 32;
    options.seq_len = 16, options.micro_batch = 2, options.total_batch = 64, options.max_steps = 6;
    options.lr = 1e-2f;
    options.val_every = 3, options.val_max_batches = 2, options.sample_every = 0;
    options.output_dir = folder;
    return options;
}

inline std::string write_tokens(const std::string& path) {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < 2000; i++) ids.push_back(i * i % kVocab);
    write_token_file(real_files(), path, TokenFormat::gpt2, ids);
    return path;
}

inline StageOptions shape_of(const Options& o) {
    StageOptions result;
    result.B = o.micro_batch;
    result.T = o.seq_len;
    result.attention = o.attention;
    result.recompute = o.recompute.value_or(Recompute::gelu);
    return result;
}

inline ModelConfig tiny_model() {
    const Options options = tiny_options("");
    return custom_model_config(options.layers, options.heads, options.channels, options.seq_len, kVocab);
}

// A run as main makes it, on data of its own.
struct TestRun {
    ModelConfig config;
    TemporaryFolder data;
    TemporaryFolder output;
    Options options = tiny_options(output.path());
    double peak_flops_per_s = 0;   // unknown
    OwnedStream stream;
    Arena arena;
    Stage model{config, shape_of(options), arena, stream.get()};
    std::optional<Step> step;
    TokenSet tokens{real_files(), "--train-data", write_tokens(data / "tokens.bin"), options.seq_len, kVocab};
    StopSignals signals;
    std::FILE* nowhere = std::fopen("/dev/null", "w");
    std::optional<Log> log{std::in_place, true, nowhere, nowhere};
    void log_to(std::FILE* out) { log.emplace(true, out, out); }

    explicit TestRun(const ModelConfig& of = tiny_model()) : config(of) {
        initialize_parameters(model.parameters(), options.seed, model.stream());
        step.emplace(model, OptimizerOptions{}, arena);
    }
    ~TestRun() { std::fclose(nowhere); }

    RunState load(const FileSystem& files, const std::string& folder) {
        return load_training_state(files, folder, tensors_of(*step), stream.get(), options.optimizer,
                                   options.reset_optimizer);
    }
    void use(OptimizerKind kind) {
        options.optimizer = kind;
        step.emplace(model, options, arena);
    }
    void save(const RunState& state) {
        save_training_state(real_files(), output.path(), state, tensors_of(*step),
                            {"", matmul_choices_text(model.matmul())},
                            Gatherer(model.storage(), nullptr, false, arena, stream.get()));
    }

    // Continues from `folder`, unless empty.
    RunEnd train(FileSystem& files, const std::string& folder = "") {
        RunState state;
        if (!folder.empty()) {
            state = load(files, folder);
            CHECK(restore_matmul_choices(files, folder + "/" + kMatmulChoicesFile, model.matmul()) == "");
        }
        Metrics metrics(files, options.output_dir, state.step);
        Agreement agreement(arena, nullptr, nullptr, signals, stream.get());
        Trainer trainer({options, *log, arena, *step, tokens, &tokens, files, metrics, agreement, nullptr, nullptr, "",
                         options.max_steps, peak_flops_per_s});
        if (!folder.empty()) trainer.restore(state);
        return trainer.run();
    }

    std::vector<std::vector<float>> weights() const {
        std::vector<std::vector<float>> result;
        for (int i = 0; i < model.table().size(); i++) {
            result.push_back(download_tensor(model.parameters(), i, model.stream()));
        }
        return result;
    }
};

}   // namespace trainer_testing
