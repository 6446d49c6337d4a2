#include "llmc/run/evaluation/validation.h"

#include <algorithm>

#include "llmc/kernels/rows/classifier.cuh"

namespace {

// So seldom that the device need not wait for the host, so often that a request to stop is soon heard.
constexpr int kMicroBatchesPerSum = 8;

}   // namespace

Validation::Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement)
    : step_(step), tokens_(tokens), agreement_(agreement) {
    const auto most = static_cast<std::uint64_t>(max_sequences);   // -1: more than there are
    for (const TokenSet::Source& source : tokens.sources()) {
        parts_.push_back({source.first_window, source.first_window + std::min(source.windows, most)});
    }
}

std::uint64_t Validation::sequences() const {
    std::uint64_t all = 0;
    for (const Part& part : parts_) all += part.end - part.begin;
    return all;
}

// What is missing in the last micro-batches is positions that have no loss.
void Validation::read(std::uint64_t first, std::uint64_t end, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets) const {
    const std::vector<TokenRange> ranges = step_.stage().token_ranges();
    const auto T = static_cast<std::size_t>(step_.stage().sizes().T);   // of a sequence, on this rank
    for (std::size_t b = 0; b < inputs.size() / T; b++) {
        const auto own_inputs = inputs.subspan(b * T, T), own_targets = targets.subspan(b * T, T);
        if (first + b < end) {
            tokens_.read_window(first + b, ranges, own_inputs, own_targets);
        } else {
            std::fill(own_inputs.begin(), own_inputs.end(), 0);
            std::fill(own_targets.begin(), own_targets.end(), -1);
        }
    }
}

std::optional<float> Validation::loss() {
    by_source_.clear();
    double loss = 0;
    for (std::size_t i = 0; i < parts_.size(); i++) {
        const std::optional<double> of_part = loss_of(parts_[i]);
        if (!of_part || (agreement_.stop_asked() && i + 1 < parts_.size())) return std::nullopt;
        const double share = static_cast<double>(parts_[i].end - parts_[i].begin) / static_cast<double>(sequences());
        loss += share * *of_part;
        if (tokens_.is_mixture()) by_source_.push_back({tokens_.sources()[i].data.name, static_cast<float>(*of_part)});
    }
    return static_cast<float>(loss);
}

std::optional<double> Validation::loss_of(const Part& part) {
    Stage& stage = step_.stage();
    const auto B = static_cast<std::uint64_t>(stage.options().B), T = static_cast<std::uint64_t>(stage.options().T);
    const float token_share = 1.0f / (static_cast<float>(part.end - part.begin) * static_cast<float>(T));
    const ShardPlace& place = stage.storage().place();
    const std::uint64_t at_once = B * static_cast<std::uint64_t>(place.mesh.dp);
    double loss = 0;
    int pending = 0;   // micro-batches that the device has added up
    for (std::uint64_t begin = part.begin; begin < part.end; begin += at_once) {
        const std::uint64_t first = begin + B * static_cast<std::uint64_t>(place.at.dp);
        step_.forward([&](int, auto inputs, auto targets) { read(first, part.end, inputs, targets); }, Purpose::loss);
        if (stage.adds_losses()) {
            sum_losses(agreement_.addend(), stage.losses(), stage.tokens(), token_share, pending > 0, stage.stream());
        }
        if (++pending < kMicroBatchesPerSum && begin + at_once < part.end) continue;
        loss += stage.adds_losses() ? agreement_.sum() : agreement_.sum(0);
        pending = 0;
        if (agreement_.stop_asked() && begin + at_once < part.end) return std::nullopt;
    }
    return loss;
}
