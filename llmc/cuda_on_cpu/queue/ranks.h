// What the program, which is also built for GPUs, tells the stand-in about its ranks. The callers declare these weak
// and find them null on a GPU, where neither question exists.
#pragma once

extern "C" {

// This process shares its machine with `local_ranks` - 1 others: it computes with that part of the cores (unless
// TRAIN_GPT_THREADS says how many), and queues that wait for a peer are no standstill before `stall_seconds`.
void stand_in_shares_machine(int local_ranks, double stall_seconds);

// Calls body(argument) with a device of its own bound to the calling thread: how several ranks live in one process.
void stand_in_own_device(void (*body)(void*), void* argument);

}   // extern "C"
