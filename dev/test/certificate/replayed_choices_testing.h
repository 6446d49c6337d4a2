// For tests: the experts that one process chose, replayed by the ranks of a layout. Near ties rounding decides who is
// chosen, and one token that goes elsewhere changes gradients by more than roundings do; with choices given, what is
// left are roundings.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "llmc/model/layer/expert_ranks.h"

namespace certificate {

// By step and layer the experts of each token of the step, (sequences, T, K).
struct Choices : std::map<std::pair<int, int>, std::vector<std::int32_t>> {
    // Between a token's last chosen expert and the next one: of logits, or of a sigmoid router's scores with biases.
    float smallest_gap = INFINITY;
};

// Another ExpertRanks, or one device's if null, for a test to change what it does.
class AroundExpertRanks : public ExpertRanks {
public:
    explicit AroundExpertRanks(std::unique_ptr<ExpertRanks> real)
        : real_(real ? std::move(real) : std::make_unique<ExpertRanks>()) {}

    RowSequences sequences(const RankSizes& sizes) const override { return real_->sequences(sizes); }
    void add_over_sequences(std::int32_t* counts, std::size_t n, cudaStream_t stream) override {
        real_->add_over_sequences(counts, n, stream);
    }
    int chunks() const override { return real_->chunks(); }
    HeldChunk held(const void* choice, int chunk) override { return real_->held(choice, chunk); }
    int held_rows(const void* choice) override { return real_->held_rows(choice); }
    void follow(cudaStream_t stream) override { real_->follow(stream); }
    void begin_exchange(const void* choice, const std::int32_t* offsets, int rows, int E,
                        std::int32_t* counts) override {
        real_->begin_exchange(choice, offsets, rows, E, counts);
    }
    void wait_for_counts(cudaStream_t stream) override { real_->wait_for_counts(stream); }
    void copy_held_offsets(std::int32_t* offsets, const void* choice, cudaStream_t stream) override {
        real_->copy_held_offsets(offsets, choice, stream);
    }
    void start(std::span<const SentRows> rows, const void* choice, int chunk, bool back) override {
        real_->start(rows, choice, chunk, back);
    }
    void wait(int chunk, cudaStream_t stream) override { real_->wait(chunk, stream); }

private:
    std::unique_ptr<ExpertRanks> real_;
};

// A rank's, around what it is without.
class KnownChoices : public AroundExpertRanks {
public:
    // A step has `sequences`; the rank reads those of its replica, micro-batch by micro-batch.
    KnownChoices(std::unique_ptr<ExpertRanks> real, std::shared_ptr<Choices> choices, bool records, int sequences,
                 int dp, int replica, std::vector<int> positions)
        : AroundExpertRanks(std::move(real)),
          choices_(std::move(choices)),
          records_(records),
          sequences_(sequences),
          dp_(dp),
          replica_(replica),
          positions_(std::move(positions)) {}

    // Biases with which a sigmoid router chooses, (L, E) on the device; null: none.
    void chooses_with(const float* bias) { bias_ = bias; }

    void begin_step(int step) {
        step_ = step;
        micro_batches_.clear();
    }

    bool replays(std::int32_t* index, int layer, const RankSizes& sizes, cudaStream_t stream) override;
    void has_chosen(const std::int32_t* index, const float* logits, int layer, const RankSizes& sizes,
                    cudaStream_t stream) override;

private:
    // use(of this rank's assignments, of the step's) for the next micro-batch of a layer.
    template <class Use>
    void for_rows(int layer, const RankSizes& sizes, Use&& use);

    std::shared_ptr<Choices> choices_;
    bool records_;
    int sequences_, dp_, replica_;
    const float* bias_ = nullptr;
    std::vector<int> positions_;   // positions of this rank's tokens in a sequence
    int step_ = 0;
    std::map<int, int> micro_batches_;   // that a layer has chosen for
};

}   // namespace certificate
