// How much memory this process may use, by everything that limits it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct MemoryLimit {
    std::string set_by;    // for people, such as "/sys/fs/cgroup/job_7/memory.max"
    std::uint64_t bytes;   // all
    std::uint64_t free;    // not in use by anyone that the limit counts

    std::string words() const;   // such as "400 MiB by /sys/fs/cgroup/job_7/memory.max"
};

struct MemoryLimits {
    std::vector<MemoryLimit> all;       // beyond these nothing is given out, or the kernel kills
    std::vector<MemoryLimit> slowing;   // beyond these (memory.high) the kernel slows the process down

    const MemoryLimit& smallest() const;   // the one with the fewest bytes, whoever uses them: the same at every start
    const MemoryLimit& tightest() const;   // the one that leaves the least
};

// Limits of this process alone, in bytes; UINT64_MAX: none.
struct OwnMemoryLimits {
    std::uint64_t addresses, data;   // ulimit -v, ulimit -d
};
OwnMemoryLimits own_memory_limits();

// Returns the limits as they are now: of the process, of every control group that it is in and their parents, of a
// machine that does not overcommit, and the machine's memory. Memory that only caches files counts as free, and so does
// the machine's swap. `root` stands before every path that is read: a test gives a tree of its own.
MemoryLimits memory_limits(const std::string& root = "", const OwnMemoryLimits& own = own_memory_limits());
