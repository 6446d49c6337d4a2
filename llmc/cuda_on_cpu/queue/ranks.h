// Calls by which the program, which is also built for GPUs, tells the stand-in about its ranks. The callers declare
// these weak and find them null on a GPU, where neither call is needed.
#pragma once

#include <string>

#include "llmc/base/limits/memory_limits.h"

extern "C" {

// Tells the stand-in that this process shares its machine with `local_ranks` - 1 others: it computes with its share of
// the cores (unless TRAIN_GPT_THREADS gives the number), and queues that wait for a peer are not a standstill before
// `stall_seconds`.
void stand_in_shares_machine(int local_ranks, double stall_seconds);

// Calls body(argument) with a device of its own bound to the calling thread: so several ranks live in one process.
void stand_in_own_device(void (*body)(void*), void* argument);

// Returns the limits of this machine's memory as they were when the calling thread's device was made.
const MemoryLimits* stand_in_memory_limits();

// Writes how many threads compute, and what sets their number, for people.
void stand_in_threads(std::string& words);

}   // extern "C"
