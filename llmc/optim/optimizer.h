// The optimizer of a run: moments and masters of every parameter, and AdamW.
//
// Which tensors there are, where they lie and which of them decay is read from the parameter table and the storage
// (param_storage.h). Moments and masters are fp32. Masters exist where parameters are bf16 and --master-weights is on;
// they start as the parameters' values. Without them bf16 parameters are rounded stochastically.
//
// Everything is asynchronous on the stage's stream.
#pragma once

#include <memory>

#include "llmc/model/stage.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh

struct OptimizerOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // largest norm of all gradients; 0: no clipping
    bool master_weights = true;
    std::uint64_t seed = 42;   // of stochastic rounding; and of the weights, the sample order and samples
};

class Optimizer {
public:
    // Moments are zero and masters equal the parameters, which must be initialised before.
    static std::unique_ptr<Optimizer> make(Stage& stage, const OptimizerOptions& options, Arena& arena);
    virtual ~Optimizer() = default;

    // sum[0] = the squares of the gradients of which this rank is the one owner, added up.
    virtual void sum_squares(double* sum) = 0;

    // The step of AdamW with this number, from 1, of what this rank owns. `norm`: on the device.
    virtual void update(int step, float learning_rate, const GradNorm* norm) = 0;

    // The whole state besides the parameters, for checkpoints. `masters` is null where there are none.
    virtual ModelState<float>& first_moments() = 0;
    virtual ModelState<float>& second_moments() = 0;
    virtual ModelState<float>* masters() = 0;
};
