// How long work takes on a stream, where something is chosen by it.
#pragma once

#include <cuda_runtime.h>

#include <functional>

// Seconds of the fastest of so many calls, each between two events, after one that warms up (libraries make plans then).
// Waits for the stream.
double least_seconds(const std::function<void()>& call, cudaStream_t stream, int calls);
