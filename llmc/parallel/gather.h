// A tensor that is cut over ranks, whole on a host: for checkpoints, exports and tests. One tensor at a time, shard by
// shard, piece by piece: on a device that takes one buffer of a fixed size besides what is kept. Whoever gathers makes
// it before the run begins, so that no checkpoint can fail for want of device memory.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/model/weights.h"
#include "llmc/process/comm.h"

constexpr int everywhere = -1;

// Where pieces of others' shards arrive.
struct Staging {
    std::size_t piece = 0;         // elements that travel at once; the same on all ranks
    DeviceBuffer<float> arrived;   // a piece; empty on ranks that get none, and where nothing is cut
};

// A piece: at most `most` elements, and no more than the largest shard has. `gets`: whether this rank gets tensors.
inline Staging make_staging(const ParamStorage& storage, bool gets, Arena& arena, std::int64_t most = 1 << 20) {
    if (storage.place().zero_stage == 0) return {};
    std::int64_t largest = 0;
    for (const TensorPlace& place : storage.tensors()) {
        largest = std::max(largest, storage.padded_elements(place, StateKind::optimizer));
    }
    Staging staging;
    staging.piece = static_cast<std::size_t>(std::min(largest, most));
    if (gets) staging.arrived = arena.allocate<float>("checkpoint/staging", staging.piece);
    return staging;
}

// The tensor in its global shape as float, on rank `root` of the group or `everywhere`; nullopt on the others.
// Collective over the group (dp x cp); waits for the stream. A state that is not sharded is taken from the rank's own
// copy, unless `only_owned` says that no more than each rank's owned part of it is valid (gradients under ZeRO-1).
template <class T>
std::optional<std::vector<float>> gather_tensor(const ModelState<T>& state, int param, Communicator& group, int root,
                                                bool only_owned, const Staging& staging, cudaStream_t stream);

// Whole tensors on the one rank that writes, rank 0 of the group. All ranks read the same tensors in the same order.
// Between its first read, or works_alone(), and the end of this object it writes alone, except while it reads
// (Communicator::Alone).
class WholeTensors {
public:
    // `group` null: one rank, which writes.
    WholeTensors(Communicator* group, const Staging& staging, cudaStream_t stream)
        : group_(group), staging_(staging), stream_(stream) {}

    bool writes() const { return group_ == nullptr || group_->rank() == 0; }

    // Until the next read, what the one that writes does, it does alone.
    void works_alone() const {
        if (group_ != nullptr && writes()) alone_.emplace(*group_, "writes a file");
    }

    // The tensor in its global shape; empty on ranks that do not write.
    template <class T>
    std::vector<float> read(const ModelState<T>& state, int param) const {
        if (group_ == nullptr) return download_tensor(state, param, stream_);
        alone_.reset();
        std::optional<std::vector<float>> whole = gather_tensor(state, param, *group_, 0, false, staging_, stream_);
        group_->note_all_done();
        works_alone();
        return std::move(whole).value_or(std::vector<float>());
    }

private:
    Communicator* group_;
    Staging staging_;
    cudaStream_t stream_;
    mutable std::optional<Communicator::Alone> alone_;   // on the one that writes
};

// ---------------------------------------------------------------------------------------------------------------------

// A piece of the shard of rank `from`, on the ranks that want it: those get it in `scratch` if it is not their own.
template <class T>
const T* fetch_piece(T* own, T* scratch, std::size_t count, Communicator& group, int from, int root,
                     cudaStream_t stream) {
    T* data = group.rank() == from ? own : scratch;
    if (root == everywhere) {
        group.broadcast(data, count, from, stream);
    } else if (from != root) {
        if (group.rank() == from) group.send(data, count, root, stream);
        if (group.rank() == root) group.receive(data, count, from, stream);
    }
    return data;
}

template <class T>
std::optional<std::vector<float>> gather_tensor(const ModelState<T>& state, int param, Communicator& group, int root,
                                                bool only_owned, const Staging& staging, cudaStream_t stream) {
    static_assert(sizeof(T) <= sizeof(float));   // what staging has room for
    const ParamStorage& storage = state.storage();
    const TensorPlace* place = storage.find(param);
    ENSURE(place != nullptr, "this rank holds no ", storage.table()[param].name);
    const bool wanted = root == everywhere || root == group.rank();
    const TensorSpec& tensor = storage.table()[param].tensor;
    std::vector<float> values(wanted ? static_cast<std::size_t>(tensor.elements()) : 0);
    // what lies at `data` are the elements from `begin` on of a buffer that has these ranges of the tensor
    auto take = [&](const T* data, std::size_t begin, std::size_t count, const std::vector<OwnedRange>& ranges) {
        std::vector<T> stored(count);
        CUDA_CHECK(cudaMemcpyAsync(stored.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        const auto first = static_cast<std::int64_t>(begin), past = static_cast<std::int64_t>(begin + count);
        for (const OwnedRange& range : ranges) {
            for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t run) {
                for (std::int64_t i = std::max(local, first); i < std::min(local + run, past); i++) {
                    values[static_cast<std::size_t>(global + i - local)] =
                        static_cast<float>(stored[static_cast<std::size_t>(i - first)]);
                }
            });
        }
    };

    if (!is_sharded(only_owned ? StateKind::optimizer : state.state(), storage.place().zero_stage)) {
        if (!wanted) return std::nullopt;
        take(state.tensor(param), 0, static_cast<std::size_t>(place->elements),
             owned_ranges(tensor, storage.place(), state.state()));
        return values;
    }
    const auto count = static_cast<std::size_t>(storage.padded_elements(*place, StateKind::optimizer));
    ENSURE(staging.piece > 0 && (!wanted || staging.arrived.size() >= staging.piece), "no staging to gather ",
           storage.table()[param].name);
    T* const arrived = reinterpret_cast<T*>(staging.arrived.data());
    for (int from = 0; from < group.size(); from++) {
        ShardPlace theirs = storage.place();
        theirs.at.dp = from / theirs.mesh.cp;
        theirs.at.cp = from % theirs.mesh.cp;
        const std::vector<OwnedRange> ranges = owned_ranges(tensor, theirs, StateKind::optimizer);
        for (std::size_t begin = 0; begin < count; begin += staging.piece) {
            const std::size_t size = std::min(staging.piece, count - begin);
            const T* piece = fetch_piece(state.owned(param) + begin, arrived, size, group, from, root, stream);
            if (wanted) take(piece, begin, size, ranges);
        }
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (!wanted) return std::nullopt;
    return values;
}
