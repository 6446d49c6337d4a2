// Which sequence of a micro-batch each of a rank's rows belongs to.
#pragma once

#include <cuda_runtime.h>

// Rows come in chunks of `chunk` of all ranks that share them, of which this one has `own`, from `first` on; sequences
// have T rows.
struct RowSequences {
    int T, own, chunk, first;
    __host__ __device__ int of(int row) const { return (row / own * chunk + first + row % own) / T; }
};
