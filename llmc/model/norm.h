// The norm before a sublayer or the classifier, on this rank's rows of the residual region; or of heads.
//
// Layer normalisation or RMSNorm, which has neither mean nor bias: llmc/kernels/rows/layernorm.cuh.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "llmc/model/cut_points.h"

class Norm {
public:
    // What it makes, and keeps for its backward: (rows, C), and statistics of each row, or null without backward.
    struct Output {
        floatX* out;
        float *mean = nullptr, *rstd = nullptr;
    };

    // Its parameters are "<name>.weight" and, unless it is RMSNorm, "<name>.bias", of a layer or, with -1, outside the
    // layers.
    Norm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer = -1);
    static std::vector<ParamRow> parameters(const std::string& name, const ModelConfig& config);

    // to.out = norm(in), of this rank's residual rows unless `rows` says how many; C is the weight's length.
    void forward(const Output& to, const floatX* in, int rows = -1) const;
    // The same of residual = in + added, which is written too.
    void add_forward(floatX* residual, const Output& to, const floatX* in, const floatX* added, int rows = -1) const;

    // din = the gradient of `in`, or added to it, from that of the output. Gradients of parameters go to their place,
    // unless `aside` (2, norm_stride, of the gradients' type) is given: then they wait there for the queue.
    struct Backward {
        floatX* din;
        const floatX *dout, *in;
        Output kept;
        bool add_to_din;
        void* aside = nullptr;
        int rows = -1;   // else this rank's residual rows
    };
    void backward(const Backward& args, AnyGradients& gradients, WeightGradientQueue& queue) const;

private:
    float epsilon() const { return static_cast<float>(tools_.sizes.model.norm_eps); }

    const StageTools& tools_;
    int weight_index_, bias_index_, width_;
    const floatX *weight_, *bias_;
};

// Elements from one vector of gradients that wait aside to the next: vector accesses stay aligned.
constexpr std::int64_t norm_stride(std::int64_t C) { return (C + 63) / 64 * 64; }
// Vectors of a sublayer, and elements of all of them: weight and bias of its norm, then the weights of heads' norms.
constexpr int norm_vectors(const ModelConfig& c) { return c.qk_norm == QkNorm::none ? 2 : 4; }
constexpr std::int64_t norm_elements(const ModelConfig& c) {
    return norm_vectors(c) * norm_stride(c.qk_norm == QkNorm::none ? c.channels : std::max(c.channels, c.head_size()));
}
