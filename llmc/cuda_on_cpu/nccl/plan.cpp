// Plans each collective: every rank sends others' data straight to them, then reduces in rank order. One hop each way,
// at most n - 1 messages per rank and phase. No ring, because a ring's order of additions would depend on where it
// starts.
#include <algorithm>
#include <cstddef>

#include "llmc/base/rng.h"
#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/cuda_on_cpu/nccl/comm.h"
#include "llmc/cuda_on_cpu/nccl/reduce.h"

namespace host {

namespace {

using Kind = CollectiveCall::Kind;
using Part = CollectivePhase::Part;

constexpr std::uint32_t point_to_point = 0xffff;   // key part of sends and receives, which are numbered per pair

char* at(const void* base, std::size_t elements, ncclDataType_t type) {
    return static_cast<char*>(const_cast<void*>(base)) + elements * size_of(type);
}

struct Range {
    std::size_t begin, count;
};

// Builds the phases of one collective on one rank.
class Planner {
public:
    explicit Planner(const CollectiveCall& call)
        : call_(call), comm_(*call.comm), what_(describe(call)), sequence_(next_key(call).sequence) {}

    // Sends every rank's `block(r)` of `in` to rank r, which reduces them into `out`.
    template <class BlockOf>
    CollectivePhase reduce_blocks(const void* in, BlockOf block, void* out, std::uint32_t part) {
        CollectivePhase phase;
        const Range own = block(comm_.rank);
        const std::size_t bytes = own.count * size_of(call_.type);
        auto scratch = std::make_shared<std::vector<char>>(bytes * static_cast<std::size_t>(comm_.size()));
        std::vector<const void*> contributions;
        for (int r = 0; r < comm_.size(); r++) {
            char* theirs = scratch->data() + static_cast<std::size_t>(r) * bytes;
            contributions.push_back(r == comm_.rank ? at(in, own.begin, call_.type) : theirs);
            if (r == comm_.rank) continue;
            const Range other = block(r);
            add(phase, true, r, at(in, other.begin, call_.type), other.count, part);
            add(phase, false, r, theirs, own.count, part);
        }
        phase.then = [scratch, contributions, out, own, type = call_.type, op = call_.op] {
            reduce(out, contributions, own.count, type, op);
        };
        return phase;
    }

    // Sends rank r's block, which is at `own` there, to block(r) of `out` on all ranks.
    template <class BlockOf>
    CollectivePhase gather_blocks(const void* own, BlockOf block, void* out, std::uint32_t part) {
        CollectivePhase phase;
        for (int r = 0; r < comm_.size(); r++) {
            const Range theirs = block(r);
            char* place = at(out, theirs.begin, call_.type);
            if (r == comm_.rank) {
                phase.then = [place, own, bytes = theirs.count * size_of(call_.type)] {
                    if (place != own && bytes > 0) std::memmove(place, own, bytes);
                };
            } else {
                add(phase, true, r, const_cast<void*>(own), block(comm_.rank).count, part);
                add(phase, false, r, place, theirs.count, part);
            }
        }
        return phase;
    }

    CollectivePhase broadcast() {
        CollectivePhase phase;
        if (comm_.rank != call_.peer) {
            add(phase, false, call_.peer, call_.out, call_.count, 0);
            return phase;
        }
        for (int r = 0; r < comm_.size(); r++) {
            if (r != comm_.rank) add(phase, true, r, const_cast<void*>(call_.in), call_.count, 0);
        }
        phase.then = [call = call_] {
            if (call.in != call.out && call.count > 0) std::memcpy(call.out, call.in, call.count * size_of(call.type));
        };
        return phase;
    }

private:
    void add(CollectivePhase& phase, bool is_send, int peer, void* data, std::size_t count, std::uint32_t part) {
        phase.parts.push_back({is_send, peer, data, count * size_of(call_.type), {comm_.id, sequence_, part}, what_});
    }

    const CollectiveCall& call_;
    ncclComm& comm_;
    std::string what_;
    std::uint64_t sequence_;
};

CollectivePhase point_to_point_phase(const CollectiveCall& call) {
    const bool is_send = call.kind == Kind::send;
    void* data = is_send ? const_cast<void*>(call.in) : call.out;
    CollectivePhase phase;
    phase.parts.push_back({is_send, call.peer, data, call.count * size_of(call.type), next_key(call), describe(call)});
    return phase;
}

}   // namespace

std::string describe(const CollectiveCall& call) {
    const std::string elements = std::to_string(call.count) + " " + name_of(call.type);
    const std::string reduction = std::string(", ") + name_of(call.op);
    switch (call.kind) {
        case Kind::all_reduce: return "all-reduce of " + elements + reduction;
        case Kind::reduce_scatter: return "reduce-scatter of " + elements + " per rank" + reduction;
        case Kind::all_gather: return "all-gather of " + elements + " per rank";
        case Kind::reduce: return "reduce of " + elements + reduction + " to rank " + std::to_string(call.peer);
        case Kind::broadcast: return "broadcast of " + elements + " from rank " + std::to_string(call.peer);
        case Kind::send:
        case Kind::receive: return "transfer of " + elements;
    }
    return "?";
}

std::vector<Access> accesses(const CollectiveCall& call) {
    const std::size_t bytes = call.count * size_of(call.type),
                      all = bytes * static_cast<std::size_t>(call.comm->size());
    const bool is_root = call.comm->rank == call.peer;
    switch (call.kind) {
        case Kind::all_reduce: return {{call.in, bytes, false}, {call.out, bytes, true}};
        case Kind::reduce_scatter: return {{call.in, all, false}, {call.out, bytes, true}};
        case Kind::all_gather: return {{call.in, bytes, false}, {call.out, all, true}};
        case Kind::reduce:
            return is_root ? std::vector<Access>{{call.in, bytes, false}, {call.out, bytes, true}}
                           : std::vector<Access>{{call.in, bytes, false}};
        case Kind::broadcast:
            return is_root ? std::vector<Access>{{call.in, bytes, false}, {call.out, bytes, true}}
                           : std::vector<Access>{{call.out, bytes, true}};
        case Kind::send: return {{call.in, bytes, false}};
        case Kind::receive: return {{call.out, bytes, true}};
    }
    return {};
}

Exchange exchange_of(const CollectiveCall& call, const TransferKey& key) {
    const double n = call.comm->size(), bytes = static_cast<double>(call.count * size_of(call.type));
    std::uint64_t pair = 0;   // a transfer's number is unique only between two ranks
    if (call.kind == Kind::send || call.kind == Kind::receive) {
        const bool is_send = call.kind == Kind::send;
        const auto from = static_cast<std::uint64_t>(is_send ? call.comm->rank : call.peer);
        const auto to = static_cast<std::uint64_t>(is_send ? call.peer : call.comm->rank);
        pair = 1 + from * static_cast<std::uint64_t>(call.comm->size()) + to;
    }
    const std::uint64_t communicator = mix64(key.comm) % 0xffff + 1;
    const std::uint64_t of_it = mix64(mix64(mix64(key.comm) ^ key.sequence) ^ pair) >> (64 - communicator_shift);
    double each_way = bytes;   // bytes of a ring
    if (call.kind == Kind::all_reduce) each_way = 2 * (n - 1) / n * bytes;
    if (call.kind == Kind::reduce_scatter || call.kind == Kind::all_gather) each_way = (n - 1) * bytes;
    return {communicator << communicator_shift | of_it, pair ? 2 : call.comm->size(),
            call.kind == Kind::receive ? 0 : each_way, call.kind == Kind::send ? 0 : each_way};
}

TransferKey next_key(const CollectiveCall& call) {
    ncclComm& comm = *call.comm;
    const bool is_send = call.kind == Kind::send;
    if (!is_send && call.kind != Kind::receive) return {comm.id, comm.collectives++, 0};
    return {comm.id, (is_send ? comm.sent : comm.received)[static_cast<std::size_t>(call.peer)]++, point_to_point};
}

std::vector<CollectivePhase> plan(const CollectiveCall& call) {
    if (call.kind == Kind::send || call.kind == Kind::receive) return {point_to_point_phase(call)};
    Planner planner(call);
    const auto n = static_cast<std::size_t>(call.comm->size());
    const std::size_t count = call.count;
    auto equal_block = [count](int r) { return Range{static_cast<std::size_t>(r) * count, count}; };
    switch (call.kind) {
        case Kind::reduce_scatter: return {planner.reduce_blocks(call.in, equal_block, call.out, 0)};
        case Kind::all_gather: return {planner.gather_blocks(call.in, equal_block, call.out, 0)};
        case Kind::broadcast: return {planner.broadcast()};
        case Kind::reduce: {
            const int root = call.peer;
            auto only_root = [count, root](int r) { return Range{0, r == root ? count : 0}; };
            return {planner.reduce_blocks(call.in, only_root, call.out, 0)};
        }
        case Kind::all_reduce: {
            // Each rank reduces one piece, then all pieces go to all ranks: the same bits everywhere, whatever the
            // sizes.
            const std::size_t piece = (count + n - 1) / n;
            auto block = [count, piece](int r) {
                const std::size_t begin = std::min(count, static_cast<std::size_t>(r) * piece);
                return Range{begin, std::min(piece, count - begin)};
            };
            void* own = at(call.out, block(call.comm->rank).begin, call.type);
            return {planner.reduce_blocks(call.in, block, own, 0), planner.gather_blocks(own, block, call.out, 1)};
        }
        default: return {};
    }
}

}   // namespace host
