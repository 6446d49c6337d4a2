// For tests that leave out what a kernel calls, one place of its source after the other: each must show.
#pragma once

#include <compare>
#include <mutex>
#include <set>
#include <string>

#include "llmc/cuda_on_cpu/exec/block.h"

namespace host {

// A place in a kernel where it calls a barrier of the block or an instruction of ptx/.
struct CallSite {
    std::string instruction, file;
    int line = 0;
    auto operator<=>(const CallSite&) const = default;
};

// While it lives, every such call is asked of `watcher`: see host::call_watcher.
class WatchedCalls {
public:
    explicit WatchedCalls(std::function<bool(const char* instruction, const Site& site)> watcher) {
        call_watcher = std::move(watcher);
    }
    ~WatchedCalls() { call_watcher = nullptr; }
    WatchedCalls(const WatchedCalls&) = delete;
};

inline bool is_call(const CallSite& call, const char* instruction, const Site& site) {
    return call.line == site.line && call.instruction == instruction && call.file == site.file;
}

// All that run() calls in source files whose names contain `file`.
template <class Run>
std::set<CallSite> calls_in(const std::string& file, Run run) {
    std::set<CallSite> calls;
    std::mutex mutex;
    const WatchedCalls watched([&](const char* instruction, const Site& site) {
        if (std::string(site.file).find(file) == std::string::npos) return true;
        const std::lock_guard lock(mutex);
        calls.insert({instruction, site.file, site.line});
        return true;
    });
    run();
    return calls;
}

// Returns the result of run() with one call left out.
template <class Run>
auto without(const CallSite& left_out, Run run) {
    const WatchedCalls watched(
        [&](const char* instruction, const Site& site) { return !is_call(left_out, instruction, site); });
    return run();
}

}   // namespace host
