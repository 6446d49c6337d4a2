// Adds up gradients over ranks, in their type (llmc/process/comm.h). Counts are elements.
#pragma once

#include "llmc/model/precision.h"
#include "llmc/process/comm.h"

// Makes `data` (count) the sum over all ranks.
inline void sum_gradients(Communicator& ranks, TypedPointer data, std::size_t count, cudaStream_t stream) {
    with_gradient_type<floatX>(data.type,
                               [&]<class G> { ranks.all_reduce(data.as<G>(), count, ReduceOp::sum, stream); });
}
