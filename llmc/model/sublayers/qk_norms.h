// Norms of queries and of keys before they are rotated: of each head by itself (Qwen3), of whole rows (OLMo2), or none.
#pragma once

#include "llmc/model/sublayer.h"
#include "llmc/model/sublayers/row_norm.h"

class QkNorms {
public:
    QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Norms rows of qkv, (rows, qkv_width()), in place. Keeps their inputs.
    void forward(floatX* qkv, Rows rows, const AttentionActivations& a) const;
    // Turns dqkv (R, qkv_width()) into the gradient of the norms' inputs.
    void backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const;

private:
    // Queries, or keys: the heads in a row of qkv, and what their norm keeps.
    struct Heads {
        int first, count;
        floatX* raw;
        float* rstd;
    };
    Heads heads(std::size_t i, const AttentionActivations& a, Rows rows) const;
    void* delayed_norm(std::size_t i, const SublayerBackward& args) const;
    void copy(const Heads& heads, floatX* apart, floatX* qkv, int rows, bool from_qkv) const;

    const StageTools& tools_;
    float* row_sums_;                  // scratch: (2, R) sums of the rows of queries and of keys
    std::vector<Norm> head_norms_;     // none, or of queries and keys
    std::vector<RowNorm> row_norms_;   // likewise
};
