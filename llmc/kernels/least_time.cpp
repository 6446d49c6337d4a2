#include "llmc/kernels/least_time.h"

#include <algorithm>
#include <limits>

#include "llmc/base/stream.h"

double least_seconds(const std::function<void()>& call, cudaStream_t stream, int samples, int calls_of_sample) {
    const TimedEvent begin, end;
    double least = std::numeric_limits<double>::infinity();
    call();
    for (int i = 0; i < samples; i++) {
        begin.record(stream);
        for (int n = 0; n < calls_of_sample; n++) call();
        end.record(stream);
        wait_for(end.get());
        least = std::min(least, end.seconds_since(begin) / calls_of_sample);
    }
    return least;
}
