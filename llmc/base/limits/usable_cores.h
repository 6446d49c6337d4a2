// How many cores this process may use.
#pragma once

#include <string>
#include <vector>

struct UsableCores {
    int allowed = 1;      // that it may run on (taskset, cpusets)
    double quota = 0;     // cores' worth of time that a control group gives it; 0: no limit
    std::string set_by;   // the file that says so

    // Cores' worth of threads, at least 1. A part of a core counts as one: its time would be lost otherwise.
    int count() const;
    // Says the same to people: "2 cores that it may run on", "1.5 cores' time by /sys/fs/cgroup/job_7/cpu.max".
    std::string words() const;
};

// Returns the scheduler's mask of this thread: bit i % 8 of byte i / 8 is set for each core i that it may run on. Empty
// if it cannot be known.
std::string core_mask();
int allowed_cores();   // their number

// Returns how many threads a process with the mask `own` may start if each core is divided among those that may run on
// it, at least 1. `masks`: of all processes that share the machine, this one among them.
int share_of_cores(const std::string& own, const std::vector<std::string>& masks);

// Returns what holds now, by the mask and by the least quota of all control groups that the process is in and their
// parents. `root` stands before every path that is read: a test gives a tree of its own.
UsableCores usable_cores(const std::string& root = "", int allowed = allowed_cores());
