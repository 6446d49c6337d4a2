// NCCL's calls on top of Fabric: communicators, groups, and operations as steps of the stand-in's queues.
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "llmc/cuda_on_cpu/nccl/comm.h"
#include "llmc/cuda_on_cpu/nccl/conversation.h"
#include "llmc/cuda_on_cpu/nccl/reduce.h"
#include "llmc/cuda_on_cpu/nccl/rendezvous.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {

namespace {

using Kind = CollectiveCall::Kind;

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<CollectiveCall> group_calls;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t refuse(ncclResult_t result, std::string why) {
    last_error = std::move(why);
    if (group_depth > 0 && group_error == ncclSuccess) group_error = result;
    return result;
}

// Returns how long ranks wait for one another when a communicator is made.
double rendezvous_seconds() {
    const char* given = std::getenv("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS");
    if (!given) return 120;
    char* end = nullptr;
    const double seconds = std::strtod(given, &end);
    if (end == given || *end != '\0' || !(seconds > 0 && seconds <= 1e6)) {
        throw std::invalid_argument("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS: '" + std::string(given) +
                                    "', expected seconds, above 0 and at most 1000000");
    }
    return seconds;
}

struct UniqueId {
    std::uint64_t magic = 0x6e63636c6d656574ull;
    FabricAddress rendezvous;
};
static_assert(sizeof(UniqueId) <= NCCL_UNIQUE_ID_BYTES);

// ---------------------------------------------------------------------------------------------------------------------
// Calls

ncclResult_t enqueue_group(const std::vector<CollectiveCall>& calls) {
    const CollectiveCall& first = calls[0];
    auto conversation = std::make_shared<Conversation>(calls);
    Operation operation;
    operation.name = conversation->what() + " (" + first.comm->name + ")";
    for (const CollectiveCall& call : calls) {
        for (const Access& access : accesses(call)) operation.accesses.push_back(access);
    }
    // It touches more than it declares: its step also reads what peers have sent to other operations of this rank.
    operation.touches = Touches::anything;
    operation.work.exchanges = conversation->exchanges();
    operation.work.multiprocessors = first.comm->most_multiprocessors;
    operation.step = [conversation] { return conversation->step(); };
    operation.waiting = [conversation] { return conversation->waiting(); };
    cudaError_t error = enqueue(first.stream, std::move(operation));
    return error == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
}

// Queues the calls of a group. Calls on one communicator become one operation, so that sends and receives of a group
// run together.
ncclResult_t flush_group(std::vector<CollectiveCall> calls) {
    while (!calls.empty()) {
        auto same = [comm = calls[0].comm](const CollectiveCall& c) { return c.comm == comm; };
        std::vector<CollectiveCall> together, rest;
        std::partition_copy(calls.begin(), calls.end(), std::back_inserter(together), std::back_inserter(rest), same);
        for (const CollectiveCall& call : together) {
            if (call.stream != together[0].stream) {
                return refuse(ncclInvalidUsage, "a group puts calls on communicator " + call.comm->name +
                                                    " on several streams, which is not served without a GPU");
            }
        }
        if (ncclResult_t result = enqueue_group(together); result != ncclSuccess) return result;
        calls = std::move(rest);
    }
    return ncclSuccess;
}

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce_scatter || kind == Kind::reduce; }

ncclResult_t issue(CollectiveCall call) {
    if (call.comm == nullptr) return refuse(ncclInvalidArgument, "the communicator is null");
    if (call.comm->aborted) return refuse(ncclInvalidUsage, "communicator " + call.comm->name + " was aborted");
    if (size_of(call.type) == 0) {
        return refuse(ncclInvalidArgument,
                      std::string("element type ") + name_of(call.type) + " is not served without a GPU");
    }
    if (reduces(call.kind) && !can_reduce(call.type, call.op)) {
        return refuse(ncclInvalidArgument,
                      std::string("reduction ") + name_of(call.op) + " is not served without a GPU");
    }
    if (call.peer < 0 || call.peer >= call.comm->size()) {
        return refuse(ncclInvalidArgument, "rank " + std::to_string(call.peer) + " of communicator " + call.comm->name +
                                               ", which has " + std::to_string(call.comm->size()));
    }
    if (group_depth > 0) {
        group_calls.push_back(call);
        return ncclSuccess;
    }
    return flush_group({call});
}

// ---------------------------------------------------------------------------------------------------------------------
// Making communicators

ncclComm* make_comm(std::shared_ptr<Fabric> fabric, std::uint64_t id, std::vector<int> members,
                    const ncclConfig_t* config) {
    auto* comm = new ncclComm;
    comm->fabric = std::move(fabric);
    comm->id = id;
    comm->members = std::move(members);
    auto self = std::find(comm->members.begin(), comm->members.end(), comm->fabric->rank());
    comm->rank = static_cast<int>(self - comm->members.begin());
    comm->name = config && config->commName ? config->commName : "of " + std::to_string(comm->size()) + " ranks";
    if (config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT) comm->most_multiprocessors = config->maxCTAs;
    comm->sent.resize(comm->members.size());
    comm->received.resize(comm->members.size());
    return comm;
}

// Waits until the host-side transfers are done; returns false when a peer is gone or nothing moves for too long.
bool finish(Fabric& fabric, const std::vector<TransferPtr>& transfers) {
    double deadline = now_seconds() + rendezvous_seconds();
    for (;;) {
        bool done = true, lost = false;
        for (const TransferPtr& t : transfers) {
            done &= t->done;
            lost |= !t->done && fabric.lost(t->peer);
        }
        if (done) return true;
        if (lost || now_seconds() > deadline) return false;
        if (fabric.progress()) {
            deadline = now_seconds() + rendezvous_seconds();
        } else {
            fabric.rest(0.005);
        }
    }
}

struct SplitChoice {
    int color, key;
};

// Returns the choices of all members of `comm`, by rank; empty if a member is gone.
std::vector<SplitChoice> exchange_choices(ncclComm& comm, SplitChoice own) {
    std::vector<SplitChoice> choices(comm.members.size());
    std::vector<TransferPtr> transfers;
    const TransferKey key{comm.id, comm.splits, 0xfffe};   // a part that no collective uses
    for (int r = 0; r < comm.size(); r++) {
        transfers.push_back(
            comm.fabric->receive(comm.member(r), key, &choices[static_cast<std::size_t>(r)], sizeof own, "split"));
        transfers.push_back(comm.fabric->send(comm.member(r), key, &own, sizeof own, "split"));
    }
    if (!finish(*comm.fabric, transfers)) choices.clear();
    return choices;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 31);
}

ncclResult_t check_config(const ncclConfig_t* config) {
    if (config == nullptr) return ncclSuccess;
    if (config->magic != 0xcafebeef) return refuse(ncclInvalidArgument, "ncclConfig_t was not initialised");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 1) {
        return refuse(ncclInvalidUsage, "nonblocking communicators are not served without a GPU");
    }
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1) {
        return refuse(ncclInvalidArgument, "maxCTAs of " + std::to_string(config->maxCTAs));
    }
    return ncclSuccess;
}

}   // namespace

ncclComm_t planned_communicator(int rank, int ranks, std::uint64_t id, const char* name, int multiprocessors) {
    auto* comm = new ncclComm;
    comm->id = id;
    comm->rank = rank;
    comm->members.resize(static_cast<std::size_t>(ranks));
    comm->name = name;
    comm->most_multiprocessors = multiprocessors;
    comm->sent.resize(comm->members.size());
    comm->received.resize(comm->members.size());
    comm->planned = true;
    return comm;
}

}   // namespace host

using host::CollectiveCall;
using host::refuse;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t comm) {
    return (comm != nullptr && comm->async_error == ncclRemoteError ? comm->lost : host::last_error).c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    try {
        host::UniqueId own;
        own.rendezvous = host::Fabric::serve_rendezvous();
        std::memset(id, 0, sizeof *id);
        std::memcpy(id, &own, sizeof own);
        return ncclSuccess;
    } catch (const std::exception& error) {
        return refuse(ncclSystemError, error.what());
    }
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    host::UniqueId rendezvous;
    std::memcpy(static_cast<void*>(&rendezvous), &id, sizeof rendezvous);
    if (rendezvous.magic != host::UniqueId{}.magic) return refuse(ncclInvalidArgument, "this is no ncclUniqueId");
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(nranks));
    }
    if (host::group_depth > 0)
        return refuse(ncclInvalidUsage, "ncclCommInitRank in a group is not served without a GPU");
    if (ncclResult_t result = host::check_config(config); result != ncclSuccess) return result;
    try {
        auto fabric = std::make_shared<host::Fabric>(rendezvous.rendezvous, rank, nranks, host::rendezvous_seconds());
        std::vector<int> members(static_cast<std::size_t>(nranks));
        for (int r = 0; r < nranks; r++) members[static_cast<std::size_t>(r)] = r;
        *comm = host::make_comm(std::move(fabric), 1, std::move(members), config);
        return ncclSuccess;
    } catch (const std::exception& error) {
        return refuse(ncclSystemError, error.what());
    }
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
    *newcomm = nullptr;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "color " + std::to_string(color));
    if (comm->aborted) return refuse(ncclInvalidUsage, "communicator " + comm->name + " was aborted");
    if (host::group_depth > 0) return refuse(ncclInvalidUsage, "ncclCommSplit in a group is not served without a GPU");
    if (ncclResult_t result = host::check_config(config); result != ncclSuccess) return result;
    if (cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
    }
    std::vector<host::SplitChoice> choices = host::exchange_choices(*comm, {color, key});
    if (choices.empty()) {
        comm->async_error = ncclRemoteError;
        return refuse(ncclRemoteError, "a rank of communicator " + comm->name + " did not take part in its split");
    }
    const std::uint64_t split = comm->splits++;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    std::vector<std::pair<int, int>> chosen;   // (key, rank in the parent)
    for (int r = 0; r < comm->size(); r++) {
        const host::SplitChoice& choice = choices[static_cast<std::size_t>(r)];
        if (choice.color == color) chosen.emplace_back(choice.key, r);
    }
    std::sort(chosen.begin(), chosen.end());
    std::vector<int> members;
    for (const auto& [_, r] : chosen) members.push_back(comm->member(r));
    const std::uint64_t id = host::mix(host::mix(comm->id, split), static_cast<std::uint64_t>(color));
    *newcomm = host::make_comm(comm->fabric, id, std::move(members), config);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (comm->aborted) return ncclSuccess;
    cudaError_t error = cudaDeviceSynchronize();
    return error == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ncclResult_t result = ncclCommFinalize(comm);
    delete comm;
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;   // queued operations see it and finish, so they run before the memory is freed
    comm->fabric->drop(comm->id);
    cudaDeviceSynchronize();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
    *result = comm->async_error;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    *count = comm->size();
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) {
    *device = 0;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    host::group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (host::group_depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--host::group_depth > 0) return ncclSuccess;
    std::vector<CollectiveCall> calls = std::move(host::group_calls);
    host::group_calls.clear();
    ncclResult_t error = std::exchange(host::group_error, ncclSuccess);
    return error != ncclSuccess ? error : host::flush_group(std::move(calls));
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return host::issue({CollectiveCall::Kind::all_reduce, sendbuff, recvbuff, count, type, op, 0, comm, stream});
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return host::issue(
        {CollectiveCall::Kind::reduce_scatter, sendbuff, recvbuff, recvcount, type, op, 0, comm, stream});
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return host::issue(
        {CollectiveCall::Kind::all_gather, sendbuff, recvbuff, sendcount, type, ncclSum, 0, comm, stream});
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
    return host::issue({CollectiveCall::Kind::reduce, sendbuff, recvbuff, count, type, op, root, comm, stream});
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return host::issue({CollectiveCall::Kind::broadcast, sendbuff, recvbuff, count, type, ncclSum, root, comm, stream});
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return host::issue({CollectiveCall::Kind::send, sendbuff, nullptr, count, type, ncclSum, peer, comm, stream});
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return host::issue({CollectiveCall::Kind::receive, nullptr, recvbuff, count, type, ncclSum, peer, comm, stream});
}

}   // extern "C"
