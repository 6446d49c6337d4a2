// Communicators of planned runs, which exchange nothing (llmc/process/comm.h).
#pragma once

#include <nccl.h>

#include <cstdint>

namespace host {

// Returns a communicator of rank `rank` on a dry device. The caller destroys it.
ncclComm_t planned_communicator(int rank, int ranks, std::uint64_t id, const char* name, int multiprocessors);

}   // namespace host
