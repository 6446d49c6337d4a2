// How many cores this process may use.
#pragma once

#include <optional>
#include <string>

struct UsableCores {
    int allowed = 1;      // that it may run on (taskset, cpusets)
    double quota = 0;     // cores' worth of time that a control group gives it; 0: no limit
    std::string set_by;   // the file that says so

    // Cores' worth of threads, at least 1. A part of a core counts as one: its time would be lost otherwise.
    int count() const;
    // The same as words, such as "2 cores it may run on", "1.5 cores by /sys/fs/cgroup/job_7/cpu.max".
    std::string words() const;
};

int allowed_cores();   // by the scheduler's mask of this thread

// Returns what holds now, by the mask and by the least quota of all control groups that the process is in and their
// parents. `root` stands before every path that is read: a test gives a tree of its own.
UsableCores usable_cores(const std::string& root = "", int allowed = allowed_cores());
