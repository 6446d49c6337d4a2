// Several ranks in one process, each a thread with a device of its own: how layouts are tested without a launcher.
//
// On a machine without a GPU every thread gets a stand-in device; with GPUs, rank r drives GPU r.
#pragma once

#include <functional>

#include "llmc/parallel/comm.h"

// How many ranks one process can be: the number of GPUs, or as many as wanted where there is none.
int most_local_ranks();

// Runs `body` on `ranks` threads, each with the world's communicator. When some throw, the first error by rank that is
// not a consequence of another one's (a lost peer) is thrown here, after all have ended.
void run_local_ranks(int ranks, const std::function<void(Communicator& world)>& body);
