// Norm of whole rows of queries, or of keys, before they are rotated (OLMo2): RMSNorm over all heads, of which each tp
// rank has some. Between begin and finish the sums over a row are added up over tp ranks (TpRegion::add_over_ranks):
// those of queries and keys together, two floats a row, forward and backward.
//
// The weight is cut as the heads are. If several ranks hold copies of a KV head, the gradient of its norm's weight is
// the sum over them, as that of the matrix that makes keys.
#pragma once

#include <string>

#include "llmc/model/layer/norm.h"

template <class Real>
struct SharedRows;   // llmc/kernels/rows/shared_rms.cuh

class RowNorm {
public:
    // Tensors that backward reads: the rows before the norm, (rows, own channels), and the statistic of each.
    struct Kept {
        floatX* raw;
        float* rstd;
    };

    // Uses "<name>.weight" for heads [first_head, first_head + heads) of a row of qkv.
    RowNorm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer,
            int first_head, int heads);
    static ParamRow parameter(const std::string& name, const ModelConfig& config, std::int64_t heads);

    // Norm rows of qkv, (rows, qkv_width()), in place. begin() writes this rank's sums (rows); finish() reads those of
    // all ranks.
    void begin(float* sums, floatX* qkv, int rows, const Kept& kept) const;
    void finish(floatX* qkv, const float* sums, int rows, const Kept& kept) const;

    // Turn `dqkv` into the gradient of the norm's input. `aside`: for the weight's gradient, as in Norm::Backward, or
    // null.
    void backward_begin(float* sums, floatX* dqkv, int rows, const Kept& kept, void* aside, Gradients& gradients,
                        WeightGradientQueue& queue) const;
    void backward_finish(floatX* dqkv, const float* sums, int rows, const Kept& kept) const;

private:
    int width() const { return heads_ * tools_.sizes.HS; }
    SharedRows<floatX> shared(floatX* qkv, int rows) const;   // this rank's part of rows of heads

    const StageTools& tools_;
    int weight_index_, first_head_, heads_;
    const floatX* weight_;
};
