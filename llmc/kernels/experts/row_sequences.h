// Maps each of a rank's rows to its sequence in the micro-batch.
#pragma once

#include <cuda_runtime.h>

// Rows come in chunks of `chunk` rows that several ranks share. This rank has `own` rows of each chunk, from `first`
// on. Sequences have T rows.
struct RowSequences {
    int T, own, chunk, first;
    __host__ __device__ int of(int row) const { return (row / own * chunk + first + row % own) / T; }
};
