// Norms of queries and of keys, of each head by itself (Qwen3), of whole rows (OLMo2) or none; and behind them rotary
// positions, in layers that have them (ModelConfig::rotates).
//
// A row has all heads, of which each tp rank has some: the sums over it, two floats a row, are added up over tp ranks
// (TpRegion::add_over_ranks), forward and backward. Weights of rows are cut as the heads are. If several ranks hold
// copies of a KV head, the gradient of its norm's weight is the sum over them, as that of the matrix that makes keys.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "llmc/model/layer/sublayer.h"

template <class Real>
struct HeadNorms;   // llmc/kernels/rows/head_norms.cuh
struct RotaryAngles;
template <class Real>
struct SharedRows;   // llmc/kernels/rows/shared_rms.cuh

class QkNorms {
public:
    QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Norms and rotates rows of qkv, (rows, qkv_width()), in place. Keeps the norms' inputs. Positions are of T tokens.
    void forward(floatX* qkv, Rows rows, int T, const Positions& positions, const AttentionActivations& a) const;
    // Turns dqkv (R, qkv_width()) into the gradient of the norms' inputs. `aside`: as Norm::Backward's, of
    // norm_vectors() vectors, or null.
    void backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a, std::byte* aside) const;

private:
    // Queries, or keys: these heads of a row of qkv, and their norm's weight.
    struct Side {
        int first_head, heads;
        int index = -1;
        const floatX* weight = nullptr;
    };
    // Tensors that backward reads, of some rows: the heads before the norm, and the statistic of each head or row.
    struct Kept {
        floatX* raw;
        float* rstd;
    };
    QkNorm kind() const { return tools_.sizes.model.qk_norm; }
    Kept kept(std::size_t i, const AttentionActivations& a, Rows rows) const;
    GradientTarget gradient(std::size_t i, const SublayerBackward& args, std::byte* aside) const;
    HeadNorms<floatX> head_norms(floatX* qkv, Rows rows, const RotaryAngles& angles,
                                 const AttentionActivations& a) const;
    SharedRows<floatX> shared_rows(std::size_t i, floatX* qkv, int rows) const;
    void backward_of_heads(const HeadNorms<floatX>& norms, const SublayerBackward& args, std::byte* aside) const;
    void forward_of_rows(floatX* qkv, Rows rows, const AttentionActivations& a) const;
    void backward_of_rows(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a,
                          std::byte* aside) const;
    void rotate(floatX* qkv, Rows rows, const RotaryAngles& angles) const;

    const StageTools& tools_;
    int layer_;
    float* row_sums_;             // scratch: (2, R) sums of the rows of queries and of keys
    std::array<Side, 2> sides_;   // queries, keys
};
