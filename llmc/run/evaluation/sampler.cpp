#include <algorithm>
#include <span>

#include "llmc/base/refuse.h"
#include "llmc/base/rng.h"
#include "llmc/run/evaluation/choose_token.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/evaluation/windows.h"
#include "llmc/tokenizer/text_ids.h"

namespace {

// Finds the cp rank that holds `position` of a sequence of T tokens, and its row there.
struct RowLocation {
    int rank, row;
};
RowLocation place_of(ContextCut cut, int T, int position) {
    for (cut.rank = 0; cut.rank < cut.cp; cut.rank++) {
        const std::vector<int> own = token_positions(token_ranges(cut, T));
        const auto found = std::find(own.begin(), own.end(), position);
        if (found != own.end()) return {cut.rank, static_cast<int>(found - own.begin())};
    }
    ENSURE(false, "position ", position, " of ", T, " is on no rank");
    return {};
}

// Returns the ids that a sample begins with.
std::vector<std::int32_t> start_of(const std::optional<Tokenizer>& tokenizer, const std::string& prompt, int vocab) {
    std::vector<std::int32_t> ids;
    if (tokenizer) {
        ids = encode_prompt(*tokenizer, prompt);
    } else {
        for (const char byte : prompt.empty() ? "\n" : prompt) ids.push_back(static_cast<unsigned char>(byte));
    }
    for (std::int32_t& id : ids) id = std::min(id, vocab - 1);
    return ids;
}

}   // namespace

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
    const std::vector<std::uint32_t>& front = tokenizer.data().front;
    if (prompt.empty() && !front.empty()) return {front.begin(), front.end()};
    if (prompt.empty()) return {static_cast<std::int32_t>(tokenizer.end_of_text())};
    const std::vector<std::uint32_t> ids = TextEncoder(tokenizer).encode(prompt);
    return {ids.begin(), ids.end()};
}

Sampler::Sampler(Step& step, Arena& arena, const std::optional<Tokenizer>& tokenizer, const SamplerOptions& options)
    : step_(step),
      tokenizer_(tokenizer),
      options_(options),
      prompt_(start_of(tokenizer, options.prompt, static_cast<int>(step.stage().config().vocab_size))),
      window_(window_size(step.stage().options().T, options.tokens + static_cast<int>(prompt_.size()),
                          window_unit(step.stage()))),
      logits_(arena.allocate<floatX>("sampling/logits", static_cast<std::size_t>(step.stage().logits_columns()))) {}

std::vector<float> Sampler::next_logits(const std::vector<std::int32_t>& ids) {
    // keeps the last tokens that fit; the zeros after them are masked, so the tokens do not see them
    const std::size_t seen = std::min(ids.size(), static_cast<std::size_t>(window_));
    Stage& stage = step_.stage();
    std::vector<std::int32_t> window(static_cast<std::size_t>(window_), 0);
    std::copy(ids.end() - static_cast<std::ptrdiff_t>(seen), ids.end(), window.begin());
    auto read = [&](int, const MicroBatch& to) {
        take_ranges(to.tokens, std::span<const std::int32_t>(window), stage.token_ranges());
    };
    step_.forward(read, Purpose::logits);
    const RowLocation last = place_of(stage.context(), window_, static_cast<int>(seen) - 1);
    step_.logits(logits_.data(), last.row, last.rank);
    const std::vector<floatX> row = logits_.download(stage.stream());
    std::vector<float> logits(static_cast<std::size_t>(stage.config().vocab_size));
    std::transform(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(logits.size()), logits.begin(),
                   [](floatX value) { return static_cast<float>(value); });
    return logits;
}

std::string Sampler::sample(int step, int number) {
    std::vector<std::int32_t> ids = prompt_;
    std::string written = options_.prompt;

    Stage& stage = step_.stage();
    const int B = stage.options().B, T = stage.options().T;
    stage.set_batch_shape(1, window_);
    const std::uint64_t key =
        mix64(mix64(options_.seed) ^ 0x73616d706c65ull) + static_cast<std::uint64_t>(number);   // for samples only
    for (int i = 0; i < options_.tokens; i++) {
        const std::uint64_t counter = static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint64_t>(i);
        const int id = choose_token(next_logits(ids), {options_.temperature}, uniform(philox(key, counter).x));
        ids.push_back(id);
        if (tokenizer_ && id < static_cast<int>(tokenizer_->vocab_size())) {
            tokenizer_->decode_one(static_cast<std::uint32_t>(id), written);
        } else if (!tokenizer_ && id < 256) {
            written += static_cast<char>(id);
        } else {
            written += text("<", id, ">");
        }
    }
    stage.set_batch_shape(B, T);
    return written;
}
