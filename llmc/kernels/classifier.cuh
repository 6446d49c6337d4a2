// Softmax cross-entropy of rows of logits, with the gradient written over the logits: probabilities never exist in memory.
//
// A call handles any number of rows, so the classifier can run in chunks. The vocabulary is padded: a row has Vp logits of
// which the first V count; the padded columns get zero gradient.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/dtype.h"

enum class ClassifierOutput {
    loss,                // validation: logits stay as they are
    loss_and_gradient,   // logits are replaced by their gradient
};

template <class Real>
struct Classifier {
    Real* logits;         // (rows, Vp)
    float* losses;        // (rows) overwritten: -log softmax(logits)[target]; 0 where the target is negative (ignored)
    const int* targets;   // (rows) in [0, V), or negative: no loss, zero gradient
    int rows, V, Vp;
    float dloss;          // gradient of the total loss by one row's loss: 1 / global number of tokens
    ClassifierOutput output;
};

template <class Real>
void fused_classifier(const Classifier<Real>& args, cudaStream_t stream);

// probabilities = softmax(logits[:, :V]) in fp32, for sampling.
// probabilities (rows, V), logits (rows, Vp).
template <class Real>
void softmax_rows(float* probabilities, const Real* logits, int rows, int V, int Vp, cudaStream_t stream);

// total[0] = scale * sum(losses[0 .. n-1]) on the device, in a fixed order; added to what is there when `accumulate`.
void sum_losses(float* total, const float* losses, int n, float scale, bool accumulate, cudaStream_t stream);
