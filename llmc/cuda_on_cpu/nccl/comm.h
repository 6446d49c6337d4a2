// One rank's side of a communicator, and of one operation on it. Internal to llmc/cuda_on_cpu.
#pragma once

#include <nccl.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/nccl/fabric.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

struct ncclComm {
    std::shared_ptr<host::Fabric> fabric;
    std::uint64_t id = 0;
    int rank = 0;
    std::vector<int> members;   // ranks in the fabric, by rank in this communicator
    std::string name;
    int most_multiprocessors = 0;   // multiprocessors that an operation takes; 0: unknown

    // Operations run one after another, in the order in which the host issued them, whatever their streams.
    std::uint64_t issued = 0;             // operations issued
    std::uint64_t finished = 0;           // operations finished
    std::deque<std::string> unfinished;   // names of the other operations, oldest first
    std::uint64_t collectives = 0, splits = 0;
    std::vector<std::uint64_t> sent, received;             // sends to and receives from each rank, counted when issued
    std::atomic<ncclResult_t> async_error = ncclSuccess;   // read from any thread
    std::string lost;                                      // message of ncclRemoteError, written before async_error
    bool aborted = false;
    bool planned = false;   // without peers: a dry device records the operations (device.h)

    int size() const { return static_cast<int>(members.size()); }
    int member(int r) const { return members[static_cast<std::size_t>(r)]; }
};

namespace host {

// One call of the program, before it is queued.
struct CollectiveCall {
    enum class Kind { all_reduce, reduce_scatter, all_gather, reduce, broadcast, send, receive } kind;
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t count = 0;   // in the NCCL call's units
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    int peer = 0;   // peer or root
    ncclComm* comm = nullptr;
    cudaStream_t stream = nullptr;
};

// Returns what both sides of each transfer must agree on: "all-reduce of 1024 fp32, sum".
std::string describe(const CollectiveCall& call);
std::vector<Access> accesses(const CollectiveCall& call);

// Returns what the call sends and receives, by a ring or to and from its peer, with the key of its transfers, for
// replays (record.h).
Exchange exchange_of(const CollectiveCall& call, const TransferKey& key);

// Transfers that run at the same time; when all are done, `then` runs.
struct CollectivePhase {
    struct Part {
        bool is_send;
        int peer;   // rank in the communicator
        void* data;
        std::size_t bytes;
        TransferKey key;
        std::string what;
    };
    std::vector<Part> parts;
    std::function<void()> then;
};

// Returns the key of a call's transfers, and counts the call.
TransferKey next_key(const CollectiveCall& call);

// Returns the phases of one call; they keep the scratch that they need alive.
std::vector<CollectivePhase> plan(const CollectiveCall& call);

}   // namespace host
