// Calls by which the program, which is also built for GPUs, tells the stand-in about its ranks. The callers declare
// these weak and find them null on a GPU, where neither call is needed.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/limits/memory_limits.h"

extern "C" {

// Tells the stand-in that this process shares its machine with others: queues that wait for a peer are not a standstill
// before `stall_seconds`.
void stand_in_shares_machine(double stall_seconds);

// Tells it which cores the ranks of this machine may run on (core_mask), this rank's among them: it computes with its
// share of them, and of its groups' quotas, unless TRAIN_GPT_THREADS gives the number.
void stand_in_shares_cores(const std::vector<std::string>& masks);

// Calls body(argument) with a device of its own bound to the calling thread: so several ranks live in one process.
void stand_in_own_device(void (*body)(void*), void* argument);

// Returns the limits of this machine's memory as they were when the calling thread's device was made.
const MemoryLimits* stand_in_memory_limits();

// Writes how many threads compute, and what sets their number, for people.
void stand_in_threads(std::string& words);

}   // extern "C"
