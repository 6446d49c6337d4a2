// Measures how long work takes on a stream, for choices by speed.
#pragma once

#include <cuda_runtime.h>

#include <functional>

// Returns the seconds of a call: the least of so many samples, each of `calls_of_sample` calls between two events,
// after a warm-up call (libraries make plans then). Waits for the stream. A GPU finishes a call of less than about 30
// us before the next is launched, so a sample of one such call measures the launch.
double least_seconds(const std::function<void()>& call, cudaStream_t stream, int samples, int calls_of_sample = 1);

// Choices by speed: another one is taken only if it is faster by more than what timings vary by (2%).
inline bool clearly_faster(double seconds, double than) { return seconds < 0.98 * than; }
