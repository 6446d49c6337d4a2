// Sums gradients over ranks in another form than their own. Zero calls one where there is one, in place of its own
// sums.
#pragma once

#include <cuda_runtime.h>

#include "llmc/model/parameters/param_storage.h"

class GradientCodec {
public:
    virtual ~GradientCodec() = default;
    // Returns true if it sums the gradient of this tensor.
    virtual bool takes(const TensorLayout& tensor) const = 0;
    // Sums the gradients of a unit's tensors that it takes, in place: whole, or at ZeRO 1 and between groups the part
    // that this rank owns.
    virtual void reduce(int slot, cudaStream_t stream) = 0;
};

// Seconds in which a step's gradients are summed over ranks, if nothing else runs.
struct ReductionTimes {
    double by_codec = 0, as_they_are = 0;
};
