// What forward keeps for backward: one set per micro-batch in flight.
//
// Shapes: B sequences of T tokens (R = B T rows), C channels, NH heads. The recompute level says what is not kept but
// computed again in backward, into one buffer shared by all layers (Chen et al., "Training deep nets with sublinear
// memory cost", 2016).
#pragma once

#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/mesh/shard.h"
#include "llmc/model/config.h"
#include "llmc/model/precision.h"

// Each level drops what the ones before it drop, and more.
enum class Recompute : std::uint8_t {
    none,
    gelu,        // GELU's output: 4C of the 16C elements per row and layer
    gelu_norm,   // both layernorms' outputs too, from the kept inputs, means and deviations
    block,       // everything of a block but its input
};

// What one block's forward leaves behind.
struct BlockActivations {
    floatX* ln1;         // (R, C)
    float* ln1_mean;     // (R)
    float* ln1_rstd;     // (R)
    floatX* qkv;         // (R, 3C): (B, T, 3, NH, HS)
    floatX* atty;        // (R, C): (B, T, NH, HS)
    float* lse;          // (B, NH, T) log-sum-exp of each query's scores
    floatX* residual2;   // (R, C) residual stream after attention
    floatX* ln2;         // (R, C)
    float* ln2_mean;     // (R)
    float* ln2_rstd;     // (R)
    floatX* fch;         // (R, 4C) before GELU
    floatX* fch_gelu;    // (R, 4C)
};

class Activations {
public:
    // For the layers of one stage. `keep_for_backward` false (validation, sampling): every layer shares one set.
    Activations(Arena& arena, const ModelConfig& config, int B, int T, const LayerRange& layers, Recompute recompute,
                bool keep_for_backward = true);

    Recompute recompute() const { return recompute_; }
    const BlockActivations& block(int layer) const { return blocks_[at(layer)]; }
    // Input of layer l (R, C); of layer `layers.end`: the output of the stage's last layer.
    floatX* residual(int layer) const { return residuals_[at(layer)]; }

    floatX* lnf;         // (R, C) input of the classifier
    float* lnf_mean;     // (R)
    float* lnf_rstd;     // (R)
    float* losses;       // (R) negative log likelihood of each target
    floatX* dresidual;   // (R, C) gradient of the residual stream, walked from the last layer to the first

private:
    std::size_t at(int layer) const { return static_cast<std::size_t>(layer - static_cast<int>(layers_.begin)); }

    LayerRange layers_;
    Recompute recompute_;
    std::vector<BlockActivations> blocks_;
    std::vector<floatX*> residuals_;
    std::vector<DeviceBuffer<floatX>> buffers_;
    std::vector<DeviceBuffer<float>> float_buffers_;
};

// Memory that lives only within a call of forward or backward; one per stream.
struct Workspace {
    Workspace(Arena& arena, const ModelConfig& config, int B, int T, int classifier_rows, bool backward);

    DeviceBuffer<floatX> logits;     // (classifier_rows, Vp)
    DeviceBuffer<floatX> rows_c;     // (R, C)   a block's output before it joins the residual stream; gradients
    DeviceBuffer<floatX> rows_3c;    // (R, 3C)  gradient of q, k, v
    DeviceBuffer<floatX> rows_4c;    // (R, 4C)  gradient inside the MLP
    DeviceBuffer<float> delta;       // (B, NH, T) attention backward
    DeviceBuffer<float> layernorm;   // partial sums of layernorm backward
};
