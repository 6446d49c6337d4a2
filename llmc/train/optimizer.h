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
#include "llmc/train/options.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh

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
