// Core attention (Megatron-LM's name): what a layer computes between its two projections, one object a stage.
//
// It owns the choice of kernels (attention_choice.h) and context parallelism: attention over sequences that ranks share
// (llmc/mesh/context_cut.h), Ulysses inside, a ring outside. Tokens are exchanged for heads in groups of `ulysses`
// ranks, and the keys and values of these heads travel the ring. A group or ring of one rank does nothing. All else in
// the model looks at one token at a time, except positions, which come from here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/mesh/context_cut.h"
#include "llmc/model/attention/ring.h"
#include "llmc/model/attention/ulysses.h"
#include "llmc/model/batch.h"
#include "llmc/model/memory/activations.h"

struct Positions;   // llmc/kernels/rows/embedding.cuh

struct CoreAttentionOptions {
    AttentionKind kind = AttentionKind::auto_;
    bool backward = true;   // false: no memory for backward
    ContextCut cut = {};
    Communicator *ring = nullptr, *ulysses = nullptr;   // the ranks of `cut`, in its order; null for one rank
    bool reusable = false;                              // backward is given memory in which gradients may travel
    std::vector<AttentionShape> other_shapes = {};      // AttentionUse::other_shapes
};

class CoreAttention {
public:
    // `sizes`: the largest micro-batches. `idle`: activations of a layer, which measurements overwrite while nothing is
    // in flight. Throws Error(no_device) if attention of the kind asked for cannot serve.
    CoreAttention(const CoreAttentionOptions& options, const RankSizes& sizes, const AttentionActivations& idle,
                  const Workspace& workspace, Arena& arena, cudaStream_t stream);

    // Sets the sizes of the next micro-batches. The first call must have the largest.
    void set_sizes(const RankSizes& sizes);
    // Returns the positions of this rank's tokens: in their documents if these are masked, else in the sequence.
    Positions positions(const Batch& batch = {}) const;

    // Computes a.atty and a.lse from a.qkv: attention of this rank's queries over all keys that they may see, in a
    // layer that `slides` those of the window (ModelConfig::window). Ulysses leaves other heads in a.qkv than it found.
    void forward(const AttentionActivations& a, const Batch& batch, bool slides = false);
    // Computes the gradient of a.qkv, AttentionScratch::dqkv, from that of a.atty, Workspace::datty, which Ulysses
    // changes. `reusable`: memory to work in, or none. Tells the queue once the last transfer of gradients has started.
    void backward(const AttentionActivations& a, const Batch& batch, const ReusableMemory& reusable,
                  WeightGradientQueue& queue, bool slides = false);

    // ---- the choice of kernels
    AttentionKind kind() const { return choice_.chosen(); }   // never auto_
    bool is_open() const { return choice_.open(); }           // several can serve, the fastest is not known
    // Returns why attention of a kind cannot serve micro-batches of the current shape; empty if it can.
    std::string refusal(AttentionKind kind) const { return choice_.refusal(kind, sizes_.attention()); }
    // Switches to `kind`, makes the library's plans and allocates memory for micro-batches of the current shape and of
    // the others. Waits for the stream. Throws Error(no_device) if it cannot serve or lacks room; our own is used then.
    void use(AttentionKind kind);
    // Measures the kinds that can serve a micro-batch of this model, and returns the fastest; does not switch. If the
    // library failed, for lack of memory for example, `library_failed` says why.
    struct Fastest {
        AttentionKind kind;
        std::string library_failed;
    };
    Fastest fastest() const;
    // Measures a hop of the ring, and the block of attention that is to hide it; none without a ring. Collective over
    // the ring's ranks; waits for the stream.
    std::optional<RingTimes> time_ring();

private:
    AttentionShape shape(const Batch& batch, bool slides) const;
    void upload_window();
    // Returns attention's output for the heads and tokens of RankSizes::attention().
    floatX* attended(const AttentionActivations& a) const { return ulysses_ ? a.attended : a.atty; }
    AttentionForward<floatX> forward_arguments(const AttentionActivations& a, const AttentionShape& shape) const;
    AttentionBackward<floatX> backward_arguments(const AttentionActivations& a, const AttentionShape& shape) const;
    // Fills what the calls read with values drawn from a normal distribution.
    void fill_randomly(const AttentionActivations& a) const;
    Ulysses::Sizes heads_of_qkv() const;
    Ulysses::Sizes heads_of_output() const;

    ContextCut cut_;
    bool reuses_;
    AttentionActivations idle_;
    const Workspace& workspace_;
    Arena& arena_;
    cudaStream_t stream_;
    RankSizes sizes_;
    AttentionChoice<floatX> choice_;
    std::optional<Ring> ring_;
    std::optional<Ulysses> ulysses_;
    // First keys of layers that slide, for whole sequences: (ring steps, B, T x ulysses); none without a window.
    DeviceBuffer<int> window_first_;
    std::vector<std::int64_t> step_pairs_;   // that they leave
    int window_B_ = 0, window_T_ = 0;        // sizes that window_keys_ are of
    FirstKeys window_keys_;
    DeviceBuffer<int> positions_;   // positions of this rank's tokens; none if it has whole sequences
};
