// Context parallelism: attention over sequences that ranks share (llmc/mesh/context_cut.h). All else in the model looks
// at one token at a time, except positions, which come from here.
//
// Ulysses inside, a ring outside: tokens are exchanged for heads in groups of `ulysses` ranks, and the keys and values
// of these heads travel the ring. A group or ring of one rank does nothing.
#pragma once

#include <optional>

#include "llmc/mesh/context_cut.h"
#include "llmc/model/cut_points.h"
#include "llmc/parallel/context/ring.h"
#include "llmc/parallel/context/ulysses.h"
#include "llmc/process/world.h"

class ContextParallel : public CutPoints {
public:
    // Makes the communicators of rings and groups: collective over the world. `reusable`: true if backward
    // is given memory in which gradients may travel.
    ContextParallel(World& world, int ulysses, Arena& arena, cudaStream_t stream, bool reusable = false);

    void set_sizes(const RankSizes& sizes) override;
    Positions positions() const override;
    void attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments, floatX* qkv,
                floatX* out, cudaStream_t stream) override;
    // With a ring, keeps back one gradient of weights (fc's, the largest): the last hop of dK and dV, which has no
    // attention to hide behind, hides behind it and attproj's.
    floatX* gather_to_tp_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t) override {
        queue.collective_started(ring_ ? 1 : WeightGradientQueue::all);
        return din;
    }
    void attend_backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& arguments,
                         floatX* dqkv, floatX* dout, const ReusableMemory& reusable, WeightGradientQueue& queue,
                         cudaStream_t stream) override;
    std::optional<RingStep> ring_step(const AttentionChoice<floatX>& attention,
                                      const AttentionForward<floatX>& arguments) override {
        if (!ring_) return std::nullopt;
        return ring_->step(attention, arguments);
    }

    // For tests and tables; null if the group is one rank.
    Communicator* ring_group() const { return ring_group_; }
    Communicator* ulysses_group() const { return ulysses_group_; }

private:
    Ulysses::Sizes heads_of_qkv() const;
    Ulysses::Sizes heads_of_output() const;

    ContextCut cut_;
    Arena& arena_;
    cudaStream_t stream_;
    bool reuses_;
    Communicator *ring_group_, *ulysses_group_;
    std::optional<Ring> ring_;
    std::optional<Ulysses> ulysses_;
    RankSizes sizes_{};
    DeviceBuffer<int> positions_;   // positions of this rank's tokens
};
