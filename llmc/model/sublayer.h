// Arguments of sublayers, the branches of the residual stream: out = in + branch(norm(in)), or in + norm(branch(in)) if
// norms come after (NormPosition). A layer is attention and then the MLP or a mixture of experts (layer.h).
//
// Each kind is a class in llmc/model/sublayers with a forward, a backward, a step of generation, and its parameters.
// layer_memory.h lists what it keeps.
#pragma once

#include <optional>

#include "llmc/model/norm.h"
#include "llmc/model/stage/stage_tools.h"

// A norm to make with the sum before it, where the two can be one kernel.
struct NextNorm {
    const Norm& norm;
    NormOutput to;
};

struct SublayerForward {
    floatX* out;        // (Rr, C): the sum; null: not needed, only what backward reads
    const floatX* in;   // (Rr, C): the residual stream, whose norm has been made already, unless norms come after
    const Batch& batch;
    std::optional<NextNorm> next = std::nullopt;   // the norm of `out` that the next sublayer reads
    bool again = false;                            // recompute: choices are not made again
};

struct SublayerBackward {
    floatX* dresidual;   // (Rr, C): before, the gradient of the output; after, that of the input
    const floatX* in;    // (Rr, C), as given to forward
    const Batch& batch;
    // Memory for a copy of the output's gradient, (Rr, C), which delayed gradients of weights read: the original
    // changes before. Null: not delayed. (Other copies take the place of activations that nobody reads again.)
    floatX* delayed_dout;
    void* delayed_norms;   // norm_elements(), or null (Norm::Backward)
    Gradients& gradients;
    WeightGradientQueue& queue;

    bool delayed() const { return delayed_dout != nullptr; }
};

// A step of generation: some positions of one sequence at once, on one device.
struct CachedStep {
    const floatX* in;     // input of the branch, (rows, C): the norm's output, or the residual stream
    floatX* cache;        // all positions of this layer: (positions, qkv_width())
    int position, rows;   // first position, number of positions
};

// Computes args.out = args.in + `branch` (Rr, C), then args.next.
void add_branch(const SublayerForward& args, const floatX* branch, const StageTools& tools);
// Returns the gradient that a gradient of weights reads: `gradient` itself, or a copy if it is delayed.
const floatX* keep_gradient(const SublayerBackward& args, floatX* copy, const floatX* gradient, std::int64_t elements,
                            cudaStream_t stream);
