// Runs independent pieces of work on all cores that this process may use.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "llmc/base/limits/usable_cores.h"

// Calls work(0) to work(count - 1) in any order; rethrows the first exception.
template <class Work>
void on_all_cores(int count, Work&& work) {
    std::atomic<int> next = 0;
    std::mutex mutex;
    std::exception_ptr failure;
    auto take = [&] {
        for (int i = next++; i < count; i = next++) {
            try {
                work(i);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
            }
        }
    };
    const int cores = std::clamp(usable_cores().count(), 1, std::max(1, count));
    std::vector<std::thread> others;
    for (int i = 1; i < cores; i++) others.emplace_back(take);
    take();
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}
