#include "llmc/cli/generate.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <iterator>

#include "llmc/base/printable.h"
#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/base/utf8.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/kernels/self_check.h"
#include "llmc/process/world.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/run_parts.h"
#include "llmc/tokenizer/text_ids.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

Tokenizer tokenizer_for(const Options& options, const std::string& model, const ModelConfig& config) {
    const std::string where = tokenizer_of_model(real_files(), model, options.generate.tokenizer);
    if (!where.empty()) return load_tokenizer(where, config);
    throw Error(ErrorKind::usage, text("there is no tokenizer beside --model ", options.model),
                "Name one with --tokenizer: bytes, or a file or folder (tokenizer.json, vocab.bpe, tiktoken ranks), as "
                "for the tokenize tool.");
}

std::string read_prompt(const GenerateOptions& options) {
    if (options.prompt_file.empty()) return options.prompt;
    if (options.prompt_file != "-") {
        try {
            return read_whole(real_files(), options.prompt_file);
        } catch (const Error& error) {
            throw Error(error.kind(), text("--prompt-file ", error.message()), error.hint());
        }
    }
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// Writes text to standard output at once; on a terminal, without control characters.
class TextOut {
public:
    void put(std::string_view bytes, bool last = false) {
        pending_ += bytes;
        const std::string whole = take_whole_characters(pending_, last);
        const std::string shown = on_terminal_ ? printable(whole) : whole;
        const bool written = std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size();
        if (written && std::fflush(stdout) == 0) return;
        throw Error(ErrorKind::io, text("standard output: write failed: ", std::strerror(errno)));
    }

private:
    std::string pending_;
    bool on_terminal_ = isatty(STDOUT_FILENO) == 1;
};

}   // namespace

std::string take_whole_characters(std::string& pending, bool last) {
    std::string whole;
    std::string_view rest = pending;
    while (true) {
        const std::size_t valid = valid_utf8_prefix(rest);
        whole += rest.substr(0, valid);
        rest.remove_prefix(valid);
        if (rest.empty()) break;
        const std::size_t broken = invalid_utf8_length(rest);
        const auto lead = static_cast<unsigned char>(rest[0]);
        if (!last && broken == rest.size() && lead >= 0xc2 && lead <= 0xf4) break;   // its rest may come
        append_utf8(0xfffd, whole);
        rest.remove_prefix(broken);
    }
    pending = std::string(rest);
    return whole;
}

int continue_text(Decoder& decoder, std::vector<std::int32_t> tokens, const Continuation& how,
                  const std::function<void(int token)>& take) {
    const auto positions = static_cast<std::size_t>(decoder.positions());
    const std::size_t last_half = (positions + 1) / 2;
    const std::uint64_t key = mix64(mix64(how.seed) ^ 0x7772697465ull);   // apart from all other uses of the seed
    const std::span<const std::int32_t> all(tokens);
    std::vector<float> logits = decoder.read(all.last(all.size() > positions ? last_half : all.size()));
    for (int count = 0; count < how.tokens; count++) {
        const std::span<const float> choices(logits.data(),
                                             how.choices > 0 ? static_cast<std::size_t>(how.choices) : logits.size());
        const std::uint32_t bits = philox(key, static_cast<std::uint64_t>(count)).x;
        const int token = choose_token(choices, how.choice, uniform(bits));
        if (how.ends(token)) return count;
        take(token);
        tokens.push_back(token);
        if (count + 1 == how.tokens) break;   // no logits are needed any more
        const std::span<const std::int32_t> seen(tokens);
        if (decoder.position() < decoder.positions()) {
            logits = decoder.read(seen.last(1));
        } else {
            decoder.forget();
            logits = decoder.read(seen.last(last_half));
        }
    }
    return how.tokens;
}

int generate(const Options& options) {
    const GenerateOptions& wish = options.generate;
    const Log log;
    std::string model = options.model;
    const std::unique_ptr<WeightSource> weights =
        only_finite(find_weights(real_files(), model, log, {}, state_of(options.weights), options.ignore_tensors));
    const ModelConfig config = weights ? weights->config() : model_config(model);
    const Tokenizer tokenizer = tokenizer_for(options, model, config);
    const std::string prompt = read_prompt(wish);
    const std::vector<std::int32_t> tokens = encode_prompt(tokenizer, prompt);
    if (const std::string what = warning_of_unknown_eos(tokenizer); !what.empty()) log.warning("%s", what.c_str());
    if (!weights) log.warning("--model %s: its weights are random, and so is what it writes", model.c_str());
    if (tokens.size() > static_cast<std::size_t>(config.max_seq_len)) {
        log.warning("the prompt has %zu tokens, the model sees %lld: it reads the last %lld", tokens.size(),
                    static_cast<long long>(config.max_seq_len), static_cast<long long>((config.max_seq_len + 1) / 2));
    }

    open_device(0);
    OwnedStream stream;
    check_hardware(stream.get());
    Arena arena;
    Decoder decoder(config, arena, stream.get());
    start_weights(decoder.parameters(), decoder.router_bias(), weights.get(), options.seed, stream.get());
    wait_for(stream.get());

    Continuation how;
    how.tokens = wish.tokens;
    how.choice = {options.temperature, wish.top_k, wish.top_p};
    how.seed = options.seed;
    how.choices = static_cast<int>(tokenizer.vocab_size());
    if (wish.stop_at_end) {
        how.ends = [&](int token) { return tokenizer.ends_text(static_cast<std::uint32_t>(token)); };
    }
    TextOut out;
    out.put(prompt);
    const double start = steady_seconds();
    double first = 0;
    const int count = continue_text(decoder, tokens, how, [&](int token) {
        if (first == 0) first = steady_seconds();
        out.put(tokenizer.data().tokens[static_cast<std::size_t>(token)]);
    });
    const double end = steady_seconds(), reading_s = (count > 0 ? first : end) - start, writing_s = end - first;
    out.put("\n", true);
    std::fprintf(stderr, "a prompt of %zu tokens read in %.2f s; %d tokens written", tokens.size(), reading_s, count);
    if (count > 1) std::fprintf(stderr, ", %.1f tokens/s", (count - 1) / writing_s);   // the first came with the prompt
    std::fputs("\n", stderr);
    return 0;
}
