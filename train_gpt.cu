// train_gpt: pretrains GPT models. `train_gpt --help` lists every option, the README shows how to begin.
//
// An index of the program: options -> device -> data and model -> training loop -> exit code. The parts are in
//   llmc/train/options.h   the command line          llmc/data/loader.h   token files and the sample order
//   llmc/train/trainer.h   the training loop         llmc/model/gpt.h     forward and backward
// Exit codes are those of ErrorKind (llmc/base/error.h), and 0.

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>

#include "llmc/base/arena.h"
#include "llmc/base/log.h"
#include "llmc/data/tokenizer.h"
#include "llmc/model/gpt.h"
#include "llmc/train/settings.h"
#include "llmc/train/trainer.h"

namespace {

// The device this process computes on. Error(no_device) where there is none.
cudaDeviceProp open_device() {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    if (devices == 0) CUDA_CHECK(cudaErrorNoDevice);
    CUDA_CHECK(cudaSetDevice(0));
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    return properties;
}

class Stream {
public:
    Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    cudaStream_t get() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

// The tokenizer that lies beside the data, as the tokenize tool leaves it there.
std::optional<Tokenizer> find_tokenizer(const Options& options) {
    const std::filesystem::path folder = std::filesystem::path(options.train_data).parent_path();
    if (!std::filesystem::exists(folder / "tokenizer.bin")) return std::nullopt;
    return Tokenizer::load(folder.empty() ? "." : folder.string());
}

ModelConfig choose_model(const Options& options, const std::optional<Tokenizer>& tokenizer) {
    const std::int64_t gpt2_vocabulary = 50257;
    const std::int64_t vocab = options.vocab_size > 0 ? options.vocab_size
                               : tokenizer            ? static_cast<std::int64_t>(tokenizer->vocab_size())
                                                      : gpt2_vocabulary;
    if (options.layers > 0) {
        return custom_model_config(options.layers, options.heads, options.channels, options.seq_len, vocab);
    }
    if (!is_descriptor(options.model)) {
        throw Error(ErrorKind::usage,
                    text("--model ", options.model, ": loading model files is not available in this version"),
                    "Give a size, such as d12 or gpt2:124M.");
    }
    ModelConfig config = model_config(options.model);
    config.vocab_size = vocab;
    config.padded_vocab_size = padded_vocab(vocab);
    check_model_config(config);
    return config;
}

GptOptions model_options(const Options& options) {
    GptOptions result;
    result.B = options.micro_batch;
    result.T = options.seq_len;
    result.attention = options.attention;
    result.recompute = options.recompute;
    result.matmul.allow_tf32 = options.tf32;
    return result;
}

OptimizerOptions optimizer_options(const Options& o) {
    OptimizerOptions result;
    result.beta1 = o.beta1;
    result.beta2 = o.beta2;
    result.eps = o.eps;
    result.weight_decay = o.weight_decay;
    result.grad_clip = o.grad_clip;
    result.master_weights = o.master_weights;
    result.grad_dtype = o.grad_dtype;
    result.seed = o.seed;
    return result;
}

int exit_code(RunEnd end) { return end == RunEnd::signal ? static_cast<int>(ErrorKind::resumable) : 0; }

int train(const Options& options) {
    const Log log;
    const cudaDeviceProp device = open_device();

    const std::optional<Tokenizer> tokenizer = find_tokenizer(options);
    const ModelConfig config = choose_model(options, tokenizer);
    auto open_tokens = [&](const char* flag, const std::string& pattern) {
        return TokenSet(real_files(), flag, pattern, options.seq_len, config.vocab_size);
    };
    std::optional<TokenSet> val_tokens;
    if (options.val_every > 0) val_tokens.emplace(open_tokens("--val-data", options.val_data));
    const TokenSet train_tokens = options.overfit_single_batch ? open_tokens("--val-data", options.val_data)
                                                               : open_tokens("--train-data", options.train_data);
    const int max_steps = steps_of_run(options, train_tokens);
    Metrics metrics(real_files(), options.output_dir);

    Arena arena;
    Stream stream;
    Gpt model(config, model_options(options), arena, stream.get());
    model.initialize(options.seed);
    auto optimizer = Optimizer::make(model, optimizer_options(options), arena);
    std::optional<Sampler> sampler;
    if (options.sample_every > 0) {
        sampler.emplace(model, arena, tokenizer,
                        SamplerOptions{options.sample_tokens, options.temperature, options.seed});
    }
    const PeakFlops peak = peak_flops(device.name, options.tf32, model.matmul(), stream.get());
    const RunFacts facts{
        device.name, precision_name, peak, "random", config, train_tokens, val_tokens ? &*val_tokens : nullptr,
        max_steps};
    Trainer trainer({options, log, arena, model, *optimizer, train_tokens, facts.val_tokens, metrics,
                     sampler ? &*sampler : nullptr, max_steps, peak.per_second});

    log.block(settings_table(options, facts));
    log.line("device memory:");
    log.block(arena.table());
    if (std::string doubt = doubts(options, config); !doubt.empty()) log.warning("%s", doubt.c_str());
    return exit_code(trainer.run());
}

}   // namespace

int main(int argc, char** argv) {
    try {
        const CommandLine command_line = parse_command_line({argv + 1, argv + argc});
        if (!command_line.print_and_exit.empty()) {
            std::fputs(command_line.print_and_exit.c_str(), stdout);
            return 0;
        }
        return train(command_line.options);
    } catch (const Error& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "train_gpt: error: %s\n", error.what());
        return error.exit_code();
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train_gpt: error: this machine has too little memory for what was asked\n");
        return static_cast<int>(ErrorKind::no_device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_gpt: error: %s\n", error.what());
        return static_cast<int>(ErrorKind::bug);
    }
}
