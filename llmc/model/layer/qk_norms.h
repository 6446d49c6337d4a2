// Norms of queries and of keys, of each head by itself (Qwen3), of whole rows (OLMo2) or none; and behind them rotary
// positions, if the model has them.
#pragma once

#include "llmc/model/layer/row_norm.h"
#include "llmc/model/layer/sublayer.h"

template <class Real>
struct HeadNorms;   // llmc/kernels/rows/head_norms.cuh
struct RotaryAngles;

class QkNorms {
public:
    QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Norms and rotates rows of qkv, (rows, qkv_width()), in place. Keeps the norms' inputs. Positions are of T tokens.
    void forward(floatX* qkv, Rows rows, int T, const Positions& positions, const AttentionActivations& a) const;
    // Turns dqkv (R, qkv_width()) into the gradient of the norms' inputs.
    void backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const;

private:
    // Queries, or keys: what their norm keeps of these rows.
    struct Kept {
        int count;   // heads
        floatX* raw;
        float* rstd;
    };
    struct HeadWeight {
        int index;
        const floatX* data;
    };
    Kept kept(std::size_t i, const AttentionActivations& a, Rows rows) const;
    void* delayed_norm(std::size_t i, const SublayerBackward& args) const;
    HeadNorms<floatX> head_norms(floatX* qkv, Rows rows, const RotaryAngles& angles,
                                 const AttentionActivations& a) const;
    void backward_of_heads(const HeadNorms<floatX>& norms, const SublayerBackward& args) const;
    void forward_of_rows(floatX* qkv, Rows rows, const AttentionActivations& a) const;
    void backward_of_rows(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const;
    void rotate(floatX* qkv, Rows rows, const RotaryAngles& angles) const;

    const StageTools& tools_;
    float* row_sums_;                        // scratch: (2, R) sums of the rows of queries and of keys
    std::vector<RowNorm> row_norms_;         // none, or of queries and keys
    std::vector<HeadWeight> head_weights_;   // none, or of queries and keys
};
