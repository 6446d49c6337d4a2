// Arguments of layers and their sublayers, the branches of the residual stream: attention, and then the MLP or a
// mixture of experts. Where norms stand, before sublayers or after, is the layer's (layer.h).
//
// Each kind of sublayer is a class here with a forward, a backward, a step of generation, and its parameters.
// layer_memory.h lists what it keeps.
#pragma once

#include "llmc/model/batch.h"
#include "llmc/model/layer/norm.h"

class KvCache;   // llmc/model/attention/kv_cache.h

// A forward, or its recompute in backward.
struct ForwardPass {
    const Batch& batch;
    float capacity_factor = 0;   // capacity of experts (capacity.cuh); 0: they take all tokens
    float sequence_share = 0;    // weight of a sequence in losses that are means: 1 / sequences of a step
    bool again = false;          // recompute: choices are not made again
};

// Says what a sublayer's output is added to, out = residual + output, and which norm of `out` is made with the sum, in
// one kernel where that is possible. Without `residual` the output alone is wanted.
struct Join {
    const floatX* residual = nullptr;   // (Rr, C)
    const Norm* norm = nullptr;
    NormOutput to = {};
};
// Computes out = join.residual + `branch` and its norm, of `rows` rows of C, by default this rank's residual rows.
void add_branch(floatX* out, const floatX* branch, const Join& join, const StageTools& tools, int rows = -1);

struct SublayerBackward {
    const floatX* dout;   // (Rr, C): gradient of the output
    const floatX* in;     // (Rr, C), as given to forward
    // Memory for a copy of dout, which delayed gradients of weights read; dout itself if nothing overwrites it. Null:
    // not delayed. (Other copies take the place of activations that nobody reads again.)
    floatX* kept_dout;
    const ForwardPass& pass;
    Gradients& gradients;
    WeightGradientQueue& queue;

    bool delayed() const { return kept_dout != nullptr; }
    // Returns the gradient that a gradient of weights reads: `gradient` itself, or if it is delayed `copy`, made now.
    const floatX* keep(floatX* copy, const floatX* gradient, std::int64_t elements, cudaStream_t stream) const;
};

// A step of generation: some positions of one sequence at once, on one device.
struct CachedStep {
    const floatX* in;     // (rows, C), as of forward
    KvCache* cache;       // attention's; else null
    int position, rows;   // first position, number of positions
};
