#include "llmc/kernels/least_time.h"

#include <algorithm>
#include <limits>

#include "llmc/base/check.h"

namespace {

class Event {
public:
    Event() { CUDA_CHECK(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    cudaEvent_t event = nullptr;
};

}   // namespace

double least_seconds(const std::function<void()>& call, cudaStream_t stream, int calls) {
    const Event begin, end;
    double least = std::numeric_limits<double>::infinity();
    call();
    for (int i = 0; i < calls; i++) {
        CUDA_CHECK(cudaEventRecord(begin.event, stream));
        call();
        CUDA_CHECK(cudaEventRecord(end.event, stream));
        CUDA_CHECK(cudaEventSynchronize(end.event));
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
        least = std::min(least, 1e-3 * static_cast<double>(milliseconds));
    }
    return least;
}
