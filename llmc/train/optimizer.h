// The optimiser of a run: gradients, moments and masters of every parameter, clipping, AdamW.
//
// Which tensors there are, where they lie and which of them decay is read from the parameter table and the storage
// (param_storage.h). Moments and masters are fp32. Masters exist where parameters are bf16 and --master-weights is on;
// they start as the parameters' values. Without them bf16 parameters are rounded stochastically.
//
// Everything is asynchronous on the model's stream: the norm, the clip factor derived from it and the decision to skip
// an update whose norm or loss is not finite stay on the device. What ranks must know alike of a step (loss, norm,
// requests to stop) travels in one all-reduce and comes to the host in one copy, for which it waits.
#pragma once

#include <memory>

#include "llmc/base/arena.h"
#include "llmc/model/gpt.h"
#include "llmc/process/comm.h"
#include "llmc/train/options.h"
#include "llmc/train/stop_votes.h"

struct OptimizerOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // 0: no clipping
    bool master_weights = true;
    DType grad_dtype = DType::fp32;
    std::uint64_t seed = 42;   // of stochastic rounding
};

// What a step has found, the same on every rank.
struct StepResult {
    float loss;        // mean over the step's tokens
    float grad_norm;   // of all gradients together, before clipping
    StopVotes stop;
};

class Optimizer;

// A line for people: what model, gradients and optimizer take on this rank by ZeRO's formula (llmc/parallel/zero.h), to
// compare with the table of what is allocated.
std::string memory_by_formula(const Gpt& model, Optimizer& optimizer, const OptimizerOptions& options);

class Optimizer {
public:
    // Moments are zero and masters equal the parameters, which must be initialised before.
    static std::unique_ptr<Optimizer> make(Gpt& model, const OptimizerOptions& options, Arena& arena,
                                           const TrainingGroups& groups = {});
    virtual ~Optimizer() = default;

    // A step begins, of so many micro-batches on every rank. Then each of them: gradients, overwritten by the first and
    // added to by later ones, and its share of the loss. `token_share` is 1 / the number of tokens of the whole step,
    // of all ranks.
    virtual void begin_step(int micro_batches) = 0;
    virtual void forward_backward(const Batch& batch, float token_share) = 0;

    // After the last micro-batch: loss, norm of all gradients, the clip factor and whether a rank asks to stop, the
    // same on every rank. `vote`: this rank's.
    virtual void finish_gradients(const StopVotes& vote) = 0;
    void finish_gradients() { finish_gradients({}); }

    // AdamW. Steps count from 1. Does nothing where the norm or the loss is not finite.
    virtual void update(int step, float learning_rate) = 0;

    // What is queued on the model's stream from now on sees the parameters this rank keeps as the last update left them
    // everywhere. Passes of the model need no such call.
    virtual void wait_for_all_gather() = 0;

    // Waits for the step's work.
    virtual StepResult result() const = 0;

    // The whole state besides the parameters, for checkpoints. `masters` is null where there are none.
    virtual ModelState<float>& first_moments() = 0;
    virtual ModelState<float>& second_moments() = 0;
    virtual ModelState<float>* masters() = 0;

    // The gradients of the step at hand, after finish_gradients, for tests: one in the global shape, on every rank
    // (collective).
    virtual std::vector<float> download_gradient(int param) = 0;
};
