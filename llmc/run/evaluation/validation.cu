#include "llmc/run/evaluation/validation.h"

#include <algorithm>
#include <numbers>

#include "llmc/base/log.h"
#include "llmc/kernels/rows/classifier.cuh"

namespace {

// Rare enough that the device need not wait for the host, frequent enough to notice a request to stop soon.
constexpr int kMicroBatchesPerSum = 8;

// Returns the bits per byte of so many nats; nothing where no byte is known.
std::optional<double> bits_per_byte_of(double nats, double bytes) {
    return bytes > 0 ? std::optional(nats / std::numbers::ln2 / bytes) : std::nullopt;
}

}   // namespace

std::string in_words(std::optional<double> bits_per_byte) {
    return bits_per_byte ? formatted(" | %.5f bits per byte", *bits_per_byte) : "";
}

Validation::Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement)
    : step_(step), tokens_(tokens), agreement_(agreement) {
    const auto most = static_cast<std::uint64_t>(max_sequences);   // -1: becomes more than there are
    for (const TokenSet::Source& source : tokens.sources()) {
        parts_.push_back({source.first_window, source.first_window + std::min(source.windows, most)});
    }
}

std::uint64_t Validation::sequences() const {
    std::uint64_t all = 0;
    for (const Part& part : parts_) all += part.end - part.begin;
    return all;
}

// Reads sequences; rows past `end` get targets without a loss.
void Validation::read(std::uint64_t first, std::uint64_t end, const MicroBatch& to) const {
    const std::vector<TokenRange> ranges = step_.stage().token_ranges();
    const auto T = static_cast<std::size_t>(step_.stage().sizes().T);   // tokens per sequence on this rank
    const std::size_t B = to.tokens.size() / T, attended = to.starts.size() / B;
    for (std::size_t b = 0; b < B; b++) {
        const auto own_inputs = to.tokens.subspan(b * T, T), own_targets = to.targets.subspan(b * T, T);
        if (first + b < end) {
            tokens_.read_window(first + b, ranges, own_inputs, own_targets);
            if (attended == 0) continue;
            tokens_.read_starts(first + b, tokens_.T(), attended_ranges(step_.stage().context(), tokens_.T()),
                                to.starts.subspan(b * attended, attended));
        } else {
            std::fill(own_inputs.begin(), own_inputs.end(), 0);
            std::fill(own_targets.begin(), own_targets.end(), -1);
        }
    }
}

// Counts the targets of each part and their bytes; each rank counts some of the windows. Collective.
void Validation::count_targets() {
    const auto ranks = static_cast<std::uint64_t>(agreement_.ranks());
    for (Part& part : parts_) {
        if (part.targets > 0) continue;
        std::int64_t targets = 0, bytes = 0;
        for (std::uint64_t i = part.begin + static_cast<std::uint64_t>(agreement_.rank()); i < part.end; i += ranks) {
            targets += tokens_.count_targets(i);
            bytes += tokens_.count_text_bytes(i);
        }
        part.targets = std::max(agreement_.sum(static_cast<double>(targets)), 1.0);
        part.bytes = agreement_.sum(static_cast<double>(bytes));
    }
}

std::optional<float> Validation::loss() {
    by_source_.clear();
    bits_per_byte_.reset();
    count_targets();
    double loss = 0, targets = 0, bytes = 0;
    for (const Part& part : parts_) targets += part.targets, bytes += part.bytes;
    for (std::size_t i = 0; i < parts_.size(); i++) {
        const std::optional<double> of_part = loss_of(parts_[i]);
        if (!of_part || (agreement_.stop_asked() && i + 1 < parts_.size())) return std::nullopt;
        loss += parts_[i].targets / targets * *of_part;
        if (!tokens_.is_mixture()) continue;
        by_source_.push_back({tokens_.sources()[i].data.name, static_cast<float>(*of_part),
                              bits_per_byte_of(*of_part * parts_[i].targets, parts_[i].bytes)});
    }
    bits_per_byte_ = bits_per_byte_of(loss * targets, bytes);
    return static_cast<float>(loss);
}

std::optional<double> Validation::loss_of(const Part& part) {
    Stage& stage = step_.stage();
    const auto B = static_cast<std::uint64_t>(stage.options().B);
    const float token_share = 1.0f / static_cast<float>(part.targets);
    const std::uint64_t at_once = B * static_cast<std::uint64_t>(stage.data_ranks());
    double loss = 0;
    int pending = 0;   // micro-batches summed on the device
    for (std::uint64_t begin = part.begin; begin < part.end; begin += at_once) {
        const std::uint64_t first = begin + B * static_cast<std::uint64_t>(stage.data_rank());
        step_.forward([&](int, const MicroBatch& to) { read(first, part.end, to); }, Purpose::loss);
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
