// A tensor that is cut over ranks, whole on a host: for checkpoints, exports and tests. One tensor at a time, shard by
// shard, so that no device needs room for more than one shard besides what it keeps.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/model/gpt.h"
#include "llmc/parallel/comm.h"

constexpr int everywhere = -1;

// The tensor in its global shape as float, on rank `root` of the group or `everywhere`; nullopt on the others.
// Collective over the group (dp x cp); waits for the stream. A state that is not sharded is taken from the rank's own
// copy, unless `only_owned` says that no more than each rank's owned part of it is valid (gradients under ZeRO-1).
template <class T>
std::optional<std::vector<float>> gather_tensor(const ModelState<T>& state, int param, Communicator& group, int root,
                                                bool only_owned, Arena& arena, cudaStream_t stream);

// Whole tensors on the one rank that writes, rank 0 of the group. All ranks read the same tensors in the same order.
// Between its first read, or works_alone(), and the end of this object it writes alone, except while it reads
// (Communicator::Alone).
class WholeTensors {
public:
    // `group` null: one rank, which writes.
    WholeTensors(Communicator* group, Arena& arena, cudaStream_t stream)
        : group_(group), arena_(arena), stream_(stream) {}

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
        std::optional<std::vector<float>> whole = gather_tensor(state, param, *group_, 0, false, arena_, stream_);
        group_->note_all_done();
        works_alone();
        return std::move(whole).value_or(std::vector<float>());
    }

private:
    Communicator* group_;
    Arena& arena_;
    cudaStream_t stream_;
    mutable std::optional<Communicator::Alone> alone_;   // on the one that writes
};

// ---------------------------------------------------------------------------------------------------------------------

// The shard of rank `from`, on the ranks that want it: those get it in `scratch` if it is not their own.
template <class T>
const T* fetch_shard(T* own, T* scratch, std::size_t count, Communicator& group, int from, int root,
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
                                                bool only_owned, Arena& arena, cudaStream_t stream) {
    const ModelLayout& layout = state.layout();
    const TensorPlace* place = layout.find(param);
    ENSURE(place != nullptr, "this rank holds no ", layout.table()[param].name);
    const bool wanted = root == everywhere || root == group.rank();
    const GlobalTensor& tensor = layout.table()[param].tensor;
    std::vector<float> values(wanted ? static_cast<std::size_t>(tensor.elements()) : 0);
    // what lies at `data` are these ranges of the tensor
    auto take = [&](const T* data, std::size_t count, const std::vector<OwnedRange>& ranges) {
        std::vector<T> stored(count);
        CUDA_CHECK(cudaMemcpyAsync(stored.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (const OwnedRange& range : ranges) {
            for (std::int64_t i = 0; i < range.length; i++) {
                values[static_cast<std::size_t>(range.global_begin + i)] =
                    static_cast<float>(stored[static_cast<std::size_t>(range.local_begin + i)]);
            }
        }
    };

    if (!is_sharded(only_owned ? StateKind::optimizer : state.state(), layout.place().zero_stage)) {
        if (!wanted) return std::nullopt;
        take(state.tensor(param), static_cast<std::size_t>(place->elements),
             owned_ranges(tensor, layout.place(), state.state()));
        return values;
    }
    const auto count = static_cast<std::size_t>(layout.tensor_room(*place, StateKind::optimizer));
    const DeviceBuffer<T> scratch = wanted ? arena.allocate<T>("gather/shard", count) : DeviceBuffer<T>();
    for (int from = 0; from < group.size(); from++) {
        const T* shard = fetch_shard(state.owned(param), scratch.data(), count, group, from, root, stream);
        ShardPlace theirs = layout.place();
        theirs.at.dp = from / theirs.mesh.cp;
        theirs.at.cp = from % theirs.mesh.cp;
        if (wanted) take(shard, count, owned_ranges(tensor, theirs, StateKind::optimizer));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (!wanted) return std::nullopt;
    return values;
}
