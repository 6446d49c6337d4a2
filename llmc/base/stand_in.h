// Says what the program asks of the stand-in for a GPU (llmc/cuda_on_cpu) beyond the calls of CUDA and NCCL. A build
// for GPUs has no stand-in: whoever must know whether this is a CPU asks here. (What shapes kernels is constexpr in
// llmc/kernels/launch.cuh.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct MemoryLimits;   // llmc/base/limits/memory_limits.h
struct ncclComm;       // nccl.h
namespace virtual_clock {
struct RecordedStep;   // llmc/base/clock/step_graph.h
}

class StandIn {
public:
    virtual ~StandIn() = default;

    // Names device memory after its owner, for messages.
    virtual void name_memory(const void* address, const char* name) = 0;
    // Returns the limits of this machine's memory as they were when the calling thread's device was made.
    virtual const MemoryLimits& memory_limits() = 0;

    // ---- ranks
    // Says that this process shares its machine with others: queues that wait for a peer are not a standstill before
    // `stall_seconds`.
    virtual void share_machine(double stall_seconds) = 0;
    // Says which cores the ranks of this machine may run on (core_mask), this rank's among them: it computes with its
    // share of them, and of its groups' quotas, unless TRAIN_GPT_THREADS gives the number.
    virtual void share_cores(const std::vector<std::string>& masks) = 0;
    // Returns how many threads compute, and what sets their number, for people. Throws Error(usage) if
    // TRAIN_GPT_THREADS is no number of threads.
    virtual std::string threads() = 0;
    // Calls `body` with a device of its own bound to the calling thread: so several ranks live in one process.
    virtual void on_own_device(const std::function<void()>& body) = 0;
    // Returns a communicator of a planned run (llmc/process/comm.h), on a dry device. The caller destroys it.
    virtual ncclComm* planned_communicator(int rank, int ranks, std::uint64_t id, const char* name,
                                           int multiprocessors) = 0;

    // ---- checks
    virtual void turn_on_checks() = 0;      // all of them, unless TRAIN_GPT_CHECKS says otherwise
    virtual std::string take_fault() = 0;   // returns and clears the fault of this thread's device; empty: none

    // ---- recordings
    // Calls `body` on a device that records and performs nothing.
    virtual void on_dry_device(const std::function<void()>& body) = 0;
    // Returns what `program` asks of this thread's device, in order; as text for other processes.
    virtual std::vector<virtual_clock::RecordedStep> record(const std::function<void()>& program) = 0;
    virtual std::string record_text(const std::function<void()>& program) = 0;
    // Returns the Chrome trace of all ranks' recordings.
    virtual std::string trace(const std::vector<std::string>& recordings) = 0;
};

// Returns the stand-in of this build; null on a GPU.
StandIn* stand_in();
