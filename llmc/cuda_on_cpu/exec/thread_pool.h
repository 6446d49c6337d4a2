// Thread pool of the CPU build: `parallel_for` spreads independent items over a small fixed pool.
//
// Does not use OpenMP, whose threads belong to oneDNN and would spin against ours.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

namespace host {

// Returns TRAIN_GPT_THREADS; nothing if it is not set or empty. Throws Error(usage) if it is no number in 1 to 1024.
std::optional<int> threads_of_environment();

// Returns the number of threads that take part, the caller included. At first: threads_of_environment(), which may
// throw, else as many as usable_cores() counts.
int thread_count();

// Sets the number of threads from the next parallel_for. Must not be called from inside one. At least 1, at most 1024.
void set_thread_count(int count);

// Returns which of the pool's threads runs the caller: 0 outside of parallel_for and for its caller, below
// thread_count().
int thread_number();

using ParallelBody = void (*)(void* context, std::int64_t first, std::int64_t last);

// Calls body(context, first, last) on pieces that cover [0, count), each at most `grain` long. Returns when all are
// done. The first exception thrown by a piece ends the others early and is thrown again here.
void parallel_ranges(std::int64_t count, std::int64_t grain, ParallelBody body, void* context);

// Calls body(index) for every index in [0, count); `grain` consecutive indices at a time (0: chosen here).
template <class Body>
void parallel_for(std::int64_t count, Body&& body, std::int64_t grain = 0) {
    using Function = std::remove_reference_t<Body>;
    if (grain <= 0) {
        std::int64_t pieces = 8 * static_cast<std::int64_t>(thread_count());   // enough to even out unequal pieces
        grain = count > pieces ? (count + pieces - 1) / pieces : 1;
    }
    auto run = [](void* context, std::int64_t first, std::int64_t last) {
        Function& function = *static_cast<Function*>(context);
        for (std::int64_t index = first; index < last; index++) function(index);
    };
    parallel_ranges(count, grain, run, const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}   // namespace host
