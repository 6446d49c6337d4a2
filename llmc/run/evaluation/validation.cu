#include "llmc/run/evaluation/validation.h"

#include <algorithm>

#include "llmc/kernels/rows/classifier.cuh"

namespace {

// So seldom that the device need not wait for the host, so often that a request to stop is soon heard.
constexpr int kMicroBatchesPerSum = 8;

}   // namespace

Validation::Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement)
    : step_(step), tokens_(tokens), sequences_(tokens.windows()), agreement_(agreement) {
    if (max_sequences > 0) sequences_ = std::min(sequences_, static_cast<std::uint64_t>(max_sequences));
}

// Sequences from `first` on. What is missing in the last micro-batches is positions that have no loss.
void Validation::read(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    const std::vector<TokenRange> ranges = step_.stage().token_ranges();
    const auto T = static_cast<std::size_t>(step_.stage().sizes().T);   // of a sequence, on this rank
    for (std::size_t b = 0; b < inputs.size() / T; b++) {
        const auto own_inputs = inputs.subspan(b * T, T), own_targets = targets.subspan(b * T, T);
        if (first + b < sequences_) {
            tokens_.read_window(first + b, ranges, own_inputs, own_targets);
        } else {
            std::fill(own_inputs.begin(), own_inputs.end(), 0);
            std::fill(own_targets.begin(), own_targets.end(), -1);
        }
    }
}

std::optional<float> Validation::loss() {
    Stage& stage = step_.stage();
    const auto B = static_cast<std::uint64_t>(stage.options().B), T = static_cast<std::uint64_t>(stage.options().T);
    const float token_share = 1.0f / (static_cast<float>(sequences_) * static_cast<float>(T));
    const ShardPlace& place = stage.storage().place();
    const std::uint64_t at_once = B * static_cast<std::uint64_t>(place.mesh.dp);
    double loss = 0;
    int pending = 0;   // micro-batches that the device has added up
    for (std::uint64_t begin = 0; begin < sequences_; begin += at_once) {
        const std::uint64_t first = begin + B * static_cast<std::uint64_t>(place.at.dp);
        step_.forward([&](int, auto inputs, auto targets) { read(first, inputs, targets); }, Purpose::loss);
        if (stage.adds_losses()) {
            sum_losses(agreement_.addend(), stage.losses(), stage.tokens(), token_share, pending > 0, stage.stream());
        }
        if (++pending < kMicroBatchesPerSum && begin + at_once < sequences_) continue;
        loss += stage.adds_losses() ? agreement_.sum() : agreement_.sum(0);
        pending = 0;
        if (agreement_.stop_asked() && begin + at_once < sequences_) return std::nullopt;
    }
    return static_cast<float>(loss);
}
