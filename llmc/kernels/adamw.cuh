// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019) over many tensors in one launch.
//
//   m = beta1 m + (1 - beta1) g          g = gradient * norm->scale (clipping, read on the device)
//   v = beta2 v + (1 - beta2) g^2
//   w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w)
//
// Moments are fp32. The weight w is the fp32 master where there is one, rounded to nearest into the parameter; else the
// parameter itself: exact for fp32, rounded stochastically for bf16 with random bits that are a function of (seed, step,
// tensor, global element), so every layout rounds alike.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/global_span.h"

// One contiguous local range of one parameter tensor; every pointer is to its first element, all have `count` elements.
template <class Real, class Grad>
struct AdamRange {
    Real* parameter;
    float* master;   // or null
    const Grad* gradient;
    float* m;
    float* v;
    std::int64_t count;
    float weight_decay;              // 0 for tensors that do not decay
    std::uint64_t tensor_key = 0;    // names the tensor to the stochastic rounding
    GlobalSpan span = {};            // which global elements these are, likewise
    std::int64_t first_block = 0;    // filled by make_adam_table
};

struct AdamStep {
    float learning_rate, beta1, beta2, epsilon;
    int step;                         // counts from 1: bias corrections are 1 - beta^step
    std::uint64_t seed = 0;           // of the stochastic rounding
    const GradNorm* norm = nullptr;   // on the device: clip factor and skip flag; null: 1 and never
};

// The tensors to update, on the device; made once, used every step.
template <class Real, class Grad>
struct AdamTable {
    std::vector<AdamRange<Real, Grad>> ranges;
    DeviceBuffer<AdamRange<Real, Grad>> device_ranges;
    std::int64_t blocks = 0;
};

template <class Real, class Grad>
AdamTable<Real, Grad> make_adam_table(Arena& arena, const std::string& name, std::vector<AdamRange<Real, Grad>> ranges,
                                      cudaStream_t stream);

template <class Real, class Grad>
void adamw_update(const AdamTable<Real, Grad>& table, const AdamStep& step, cudaStream_t stream);
