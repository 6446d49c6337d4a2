// The norm of all gradients, and from it the factor that clips them: all on the device, no host round trip.
//
// Two stages, each in a fixed order: blocks sum squares of fixed pieces of the tensors, one block adds the pieces in double.
// In between, ranks that hold different pieces may sum `sum` over each other (one double).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"

// What AdamW reads on the device and the trainer downloads for its log.
struct GradNorm {
    float norm;    // sqrt of the sum of squares
    float scale;   // what gradients are multiplied with: min(1, max_norm / norm), or 1 when max_norm <= 0
    int skip;      // 1 when the norm is not finite: the update must not happen
};

template <class Grad>
struct NormRange {
    const Grad* data;
    std::int64_t count;
    std::int64_t first_block = 0;   // filled by make_norm_table
};

// The ranges whose squares are summed, on the device with their scratch; made once, used every step.
template <class Grad>
struct NormTable {
    std::vector<NormRange<Grad>> ranges;
    DeviceBuffer<NormRange<Grad>> device_ranges;
    DeviceBuffer<float> partials;   // one per block
    std::int64_t blocks = 0;
};

template <class Grad>
NormTable<Grad> make_norm_table(Arena& arena, const std::string& name, std::vector<NormRange<Grad>> ranges,
                                cudaStream_t stream);

// sum[0] = sum of squares of every element of every range; added to what is there when `accumulate`.
template <class Grad>
void sum_of_squares(double* sum, const NormTable<Grad>& table, bool accumulate, cudaStream_t stream);

// result[0] from sum[0], the sum of squares over all ranks.
void finish_global_norm(GradNorm* result, const double* sum, float max_norm, cudaStream_t stream);
