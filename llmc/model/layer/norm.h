// A norm of the residual stream or, if norms come after sublayers, of a sublayer's output: on this rank's rows of the
// residual region.
//
// Layer normalisation or RMSNorm, which has neither mean nor bias: llmc/kernels/rows/layernorm.cuh.
#pragma once

#include <string>
#include <vector>

#include "llmc/model/layer/stage_tools.h"
#include "llmc/model/parameters/gradients.h"
#include "llmc/model/parameters/weight_gradient_queue.h"

class Norm {
public:
    // Its parameters are "<name>.weight" and, unless it is RMSNorm, "<name>.bias", of a layer or, with -1, outside the
    // layers.
    Norm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer = -1);
    static std::vector<ParamRow> parameters(const std::string& name, const ModelConfig& config);

    // Computes to.out = norm(in) of `rows` rows of C, by default this rank's residual rows.
    void forward(const NormOutput& to, const floatX* in, int rows = -1) const;
    // Computes residual = in + added and to.out = norm(residual).
    void add_forward(floatX* residual, const NormOutput& to, const floatX* in, const floatX* added,
                     int rows = -1) const;

    // Writes the gradient of `in` to din, or adds it there (add_to_din). Gradients of parameters go to their place,
    // unless `aside` (2, norm_stride), of the gradients' type, is given: then they wait there for the queue.
    struct Backward {
        floatX* din;
        const floatX *dout, *in;
        NormOutput kept;
        bool add_to_din;
        void* aside = nullptr;
    };
    void backward(const Backward& args, Gradients& gradients, WeightGradientQueue& queue) const;

private:
    // Llama, Mistral and Qwen3 do, OLMo2 does not.
    bool rounds_before_weight() const { return tools_.sizes.model.norm_position == NormPosition::before; }
    float epsilon() const { return static_cast<float>(tools_.sizes.model.norm_eps); }

    const StageTools& tools_;
    int weight_index_, bias_index_;
    const floatX *weight_, *bias_;
};

// Returns where a vector's gradient is made: at its place, or `aside` (Norm::Backward), until the queue calls
// take_place().
GradientTarget vector_target(Gradients& gradients, int index, void* aside);
void take_place(Gradients& gradients, int index, TypedPointer from, int count, cudaStream_t stream);
