#include "llmc/run/loop/step_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "llmc/run/options/layout_options.h"
#include "llmc/run/run_inputs.h"

StepBatch::StepBatch(const TrainerParts& parts)
    : parts_(parts),
      options_(parts.options),
      stage_(parts.step.stage()),
      loader_(parts.train_tokens, options_.seed, phases_of(options_, parts.train_tokens),
              options_.overfit_single_batch),
      tokens_(options_.tokens_by_step()),
      lengths_(options_.seq_len_by_step()) {}

void StepBatch::begin(int step, std::int64_t tokens) {
    if (ahead_ != loader_.state()) parts_.step.forget_read_ahead();
    step_ = step;
    length_ = static_cast<int>(lengths_.at(step));
    pairs_.clear();
    cut_sequences(length_);
    tokens = std::min(tokens, tokens_.at(step));
    const auto samples = static_cast<std::uint64_t>(tokens / options_.seq_len);
    if (samples == std::exchange(samples_, samples)) return;
    schedule_ = schedule_of_stage(options_.with_batch(tokens), stage_.storage().place().at.pp);
}

void StepBatch::end() { cut_sequences(options_.seq_len); }

void StepBatch::end_step() {
    end();
    loader_.advance(samples_);
}

void StepBatch::cut_sequences(int length) {
    stage_.set_batch_shape(options_.micro_batch * (options_.seq_len / length), length);
}

void StepBatch::read_ahead() {
    if (step_ == parts_.last_step() || options_.overfit_single_batch) return;
    if (options_.document_mask && lengths_.at(step_ + 1) != length_)
        return ahead_.reset();   // documents are cut differently
    const std::optional<LoaderState> next = loader_.after(samples_);
    try {
        parts_.step.read_ahead(reader(), micro_batches_of(schedule_));
        ahead_ = next;
    } catch (const Error& error) {   // an error in the data: the next step reads them again and reports it
        if (error.kind() != ErrorKind::bad_data && error.kind() != ErrorKind::io) throw;
        ahead_.reset();
    }
}

Pipeline::Read StepBatch::reader() {
    return [this](int micro_batch, const MicroBatch& to) { read(micro_batch, to); };
}

void StepBatch::read(int micro_batch, const MicroBatch& to) {
    const std::uint64_t B = static_cast<std::uint64_t>(options_.micro_batch);
    // samples are dealt out over dp alone
    const auto first = static_cast<std::uint64_t>(micro_batch * stage_.data_ranks() + stage_.data_rank()) * B;
    const bool of_next = micro_batch >= micro_batches_of(schedule_);   // read ahead for the next step
    const std::int64_t length = of_next ? lengths_.at(step_ + 1) : length_;
    const ContextCut cut = stage_.context();
    std::vector<TokenRange> ranges;   // this cp rank's tokens of each sample; cp cuts every sequence of a sample
    for (std::int64_t begin = 0; begin < options_.seq_len; begin += length) {
        for (TokenRange range : token_ranges(cut, length)) ranges.push_back({begin + range.begin, range.length});
    }
    loader_.read(first, B, ranges, to.tokens, to.targets);
    if (to.starts.empty()) return;
    loader_.read_starts(first, B, length, attended_ranges(cut, length), to.starts);
    if (!of_next) pairs_[micro_batch] = seen_pairs(stage_.sizes().model, to.starts, cut, length);
}

double StepBatch::count_targets(Agreement& agreement) const {
    const TokenSet& of = parts_.train_tokens;
    if (of.documents().boundary_loss) return static_cast<double>(tokens());
    const auto rank = static_cast<std::uint64_t>(agreement.rank()),
               ranks = static_cast<std::uint64_t>(agreement.ranks());
    const std::uint64_t begin = samples_ * rank / ranks, end = samples_ * (rank + 1) / ranks;
    std::int64_t local = 0;
    for (const SampleId& id : loader_.samples(begin, end - begin)) local += of.count_targets(id.window);
    return std::max(agreement.sum(static_cast<double>(local)), 1.0);
}

std::string StepBatch::names_of_samples() const {
    constexpr std::uint64_t most = 32;
    std::string words;
    for (const SampleId& id : loader_.samples(0, std::min(samples_, most))) {
        const std::string& source = parts_.train_tokens.sources()[id.source].data.name;
        words += text(words.empty() ? "" : ", ", source, source.empty() ? "" : " ", id.epoch, "/", id.window);
    }
    return samples_ > most ? text(words, " and ", samples_ - most, " more") : words;
}

std::string StepBatch::pairs_in_words(Agreement& agreement) const {
    const ModelConfig& config = stage_.sizes().model;
    const ContextCut cut = stage_.context();
    const bool documents = options_.document_mask, windows = config.window_cuts(length_);
    if (!documents && !windows) return "";
    std::vector<double> by_rank(static_cast<std::size_t>(agreement.ranks()));
    double& own = by_rank[static_cast<std::size_t>(agreement.rank())];
    for (const auto& [_, pairs] : pairs_) own += pairs;
    if (!documents) {   // all sequences are alike
        const std::vector<std::int32_t> whole(static_cast<std::size_t>(length_ / cut.ring_size()), 0);
        own = static_cast<double>(samples_) / stage_.data_ranks() * options_.seq_len / length_ *
              seen_pairs(config, whole, cut, length_);
    }
    agreement.sum(by_rank);
    const double most = *std::ranges::max_element(by_rank);
    const double mean = std::accumulate(by_rank.begin(), by_rank.end(), 0.0) / agreement.ranks();
    const double causal =
        static_cast<double>(samples_) / stage_.data_ranks() * options_.seq_len * (length_ + 1.0) / 2 / cut.ring_size();
    return formatted(
        "%s%s%s: of this step's pairs of a query and an earlier key %.1f%% are %s; the rank with most has %.2f times "
        "the mean",
        documents ? "document mask" : "", documents && windows ? " and " : "", windows ? "window" : "",
        100 * mean / causal, windows ? "seen, in the mean over the layers" : "of one document", most / mean);
}

double seen_pairs(const ModelConfig& config, std::span<const std::int32_t> starts, const ContextCut& cut,
                  std::int64_t T) {
    const auto all = static_cast<double>(visible_pairs(starts, cut, T));
    if (!config.window_cuts(T)) return all;
    const auto within = static_cast<double>(visible_pairs(window_starts(starts, cut, T, config.window), cut, T));
    double sum = 0;
    for (std::int64_t layer = 0; layer < config.layers; layer++) sum += config.slides(layer) ? within : all;
    return sum / static_cast<double>(config.layers);
}
