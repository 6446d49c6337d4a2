// The norm of whole rows of queries, or of keys, before they are turned (OLMo2): RMSNorm over all heads, of which
// tensor parallelism gives each rank some. The sums over a row are taken over tp ranks in between
// (CutPoints::sum_rows): those of queries and keys together, two floats a row, forward and backward.
//
// The weight is cut as the heads are. Where several ranks hold copies of a head of keys, its gradient is the sum over
// them, as that of the matrix that makes keys.
#pragma once

#include <string>

#include "llmc/model/norm.h"

template <class Real>
struct SharedRows;   // llmc/kernels/rows/shared_rms.cuh

class RowNorm {
public:
    // What backward reads: the rows before the norm, (rows, own channels), and the statistic of each.
    struct Kept {
        floatX* raw;
        float* rstd;
    };

    // "<name>.weight", of heads [first_head, first_head + heads) of a row of qkv.
    RowNorm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer,
            int first_head, int heads);
    static ParamRow parameter(const std::string& name, const ModelConfig& config, std::int64_t heads);

    // qkv: (rows, qkv_width()). sums (rows): of this rank before, of all after.
    void begin(float* sums, floatX* qkv, int rows, const Kept& kept) const;
    void finish(floatX* qkv, const float* sums, int rows, const Kept& kept) const;

    // `dqkv` becomes the gradient of what was normed. `aside`: of the weight's gradient, as in Norm::Backward, or null.
    void backward_begin(float* sums, floatX* dqkv, int rows, const Kept& kept, void* aside, AnyGradients& gradients,
                        WeightGradientQueue& queue) const;
    void backward_finish(floatX* dqkv, const float* sums, int rows, const Kept& kept) const;

    int width() const { return heads_ * tools_.sizes.HS; }

private:
    SharedRows<floatX> shared(floatX* qkv, int rows) const;   // this rank's part of rows of heads

    const StageTools& tools_;
    int weight_index_, first_head_, heads_;
    const floatX* weight_;
};
