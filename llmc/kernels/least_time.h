// Measures how long work takes on a stream, for choices by speed.
#pragma once

#include <cuda_runtime.h>

#include <functional>

// Returns the seconds of the fastest of so many calls, each between two events, after a warm-up call (libraries make
// plans then). Waits for the stream.
double least_seconds(const std::function<void()>& call, cudaStream_t stream, int calls);
