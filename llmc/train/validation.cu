#include "llmc/train/validation.h"

#include <algorithm>

#include "llmc/kernels/classifier.cuh"

namespace {

// So seldom that the device need not wait for the host, so often that a request to stop is soon heard.
constexpr int kMicroBatchesPerSum = 8;

}   // namespace

Validation::Validation(Gpt& model, BatchBuffer& batch, const TokenSet& tokens, int max_sequences, Agreement& agreement)
    : model_(model),
      batch_(batch),
      tokens_(tokens),
      sequences_(tokens.windows()),
      agreement_(agreement),
      inputs_(static_cast<std::size_t>(model.options().B) * static_cast<std::size_t>(model.options().T)),
      targets_(inputs_.size()) {
    ensure_own_tokens(model.storage().place().mesh);
    if (max_sequences > 0) sequences_ = std::min(sequences_, static_cast<std::uint64_t>(max_sequences));
}

// Sequences from `first` on. What is missing in the last micro-batches is positions that have no loss.
void Validation::read(std::uint64_t first) {
    const auto B = static_cast<std::uint64_t>(model_.options().B);
    const auto T = static_cast<std::size_t>(model_.options().T);
    for (std::uint64_t b = 0; b < B; b++) {
        auto inputs = std::span(inputs_).subspan(b * T, T), targets = std::span(targets_).subspan(b * T, T);
        if (first + b < sequences_) {
            tokens_.read_window(first + b, inputs, targets);
        } else {
            std::fill(inputs.begin(), inputs.end(), 0);
            std::fill(targets.begin(), targets.end(), -1);
        }
    }
}

std::optional<float> Validation::loss() {
    const auto B = static_cast<std::uint64_t>(model_.options().B), T = static_cast<std::uint64_t>(model_.options().T);
    const float token_share = 1.0f / (static_cast<float>(sequences_) * static_cast<float>(T));
    const ShardPlace& place = model_.storage().place();
    const std::uint64_t at_once = B * static_cast<std::uint64_t>(place.mesh.dp);
    double loss = 0;
    int pending = 0;   // micro-batches that the device has added up
    for (std::uint64_t begin = 0; begin < sequences_; begin += at_once) {
        read(begin + B * static_cast<std::uint64_t>(place.at.dp));
        batch_.upload(inputs_, targets_, model_.stream());
        model_.forward_loss(batch_.batch());
        sum_losses(agreement_.addend(), model_.losses(), static_cast<int>(B * T), token_share, pending > 0,
                   model_.stream());
        if (++pending < kMicroBatchesPerSum && begin + at_once < sequences_) continue;
        loss += agreement_.sum();
        pending = 0;
        if (agreement_.stop_asked() && begin + at_once < sequences_) return std::nullopt;
    }
    return static_cast<float>(loss);
}
