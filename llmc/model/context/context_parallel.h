// Context parallelism: attention over sequences that ranks share (llmc/mesh/context_cut.h). All else in the model looks
// at one token at a time, except positions, which come from here.
//
// Ulysses inside, a ring outside: tokens are exchanged for heads in groups of `ulysses` ranks, and the keys and values
// of these heads travel the ring. A group or ring of one rank does nothing.
#pragma once

#include <optional>

#include "llmc/mesh/context_cut.h"
#include "llmc/model/batch.h"
#include "llmc/model/context/ring.h"
#include "llmc/model/context/ulysses.h"
#include "llmc/model/memory/activations.h"

struct Positions;   // llmc/kernels/rows/embedding.cuh

class ContextParallel {
public:
    // `ring_group`, `ulysses_group`: the ranks of `cut`, in its order; null for one rank. `reusable`: true if backward
    // is given memory in which gradients may travel.
    ContextParallel(const ContextCut& cut, Communicator* ring_group, Communicator* ulysses_group, Arena& arena,
                    cudaStream_t stream, bool reusable = false);

    // Sets the sizes of the next micro-batches. The first call must have the largest.
    void set_sizes(const RankSizes& sizes);
    // Returns the positions of this rank's tokens: in their documents if these are masked, else in the sequence.
    Positions positions(const Batch& batch = {}) const;

    // Runs attention of this rank's queries over all keys that they may see. `arguments` have the heads and tokens of
    // RankSizes::attention(). `qkv` is the output of the layer below, (R, qkv_width()), and becomes q, k and v of the
    // arguments. `out` (R, NH HS) is the input of the layer above.
    void attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments, floatX* qkv,
                floatX* out);
    // Runs backward of attend. `dout` becomes the gradient that the arguments read, with q, k, v and the output as
    // `attend` left them; dq, dk and dv become `dqkv`, for the layer below. Tells the queue once the last transfer of
    // gradients has been started.
    void attend_backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& arguments,
                         floatX* dqkv, floatX* dout, const ReusableMemory& reusable, WeightGradientQueue& queue);
    // Returns a step of the ring to measure, while nothing is in flight; none without a ring. Every rank of the ring
    // must make as many hops.
    std::optional<RingStep> ring_step(const AttentionChoice<floatX>& attention,
                                      const AttentionForward<floatX>& arguments);

private:
    Ulysses::Sizes heads_of_qkv() const;
    Ulysses::Sizes heads_of_output() const;

    ContextCut cut_;
    Arena& arena_;
    cudaStream_t stream_;
    bool reuses_;
    std::optional<Ring> ring_;
    std::optional<Ulysses> ulysses_;
    RankSizes sizes_{};
    DeviceBuffer<int> positions_;   // positions of this rank's tokens; none if it has whole sequences
};
