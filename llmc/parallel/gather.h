// Gathers a tensor that is cut over the ranks of its pipeline stage, whole, to a host: for checkpoints, exports and
// tests. It gathers one tensor at a time, shard by shard, piece by piece. This takes one device buffer of a fixed size,
// and the tensor and a piece on the host. A part that several ranks hold is taken from the rank that gets the tensor,
// or from one whose coordinate along the other axes is that rank's.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stream.h"
#include "llmc/model/parameters/param_storage.h"
#include "llmc/process/comm.h"

constexpr int everywhere = -1;

class Gatherer {
public:
    // `group`: the ranks of this stage (stage_axes), in the order of group_rank; null: this rank alone. `gets`: true if
    // tensors ever come to this rank; then the buffer is made here, so that no checkpoint fails for want of device
    // memory. A piece has at most `most` elements, and no more than the largest shard. `all`: all ranks, if there are
    // several stages.
    Gatherer(const ParamStorage& storage, Communicator* group, bool gets, Arena& arena, cudaStream_t stream,
             std::int64_t most = 1 << 20, Communicator* all = nullptr);

    int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
    int ranks() const { return group_ == nullptr ? 1 : group_->size(); }

    // Returns the tensor in its global shape on rank `root` of the group, or `everywhere`; empty on the others.
    // Collective over the group; waits for the stream. With `only_owned` only each rank's owned part of the state need
    // be valid (gradients under ZeRO-1).
    template <class T>
    std::vector<T> gather(const ModelState<T>& state, int param, int root, bool only_owned = false) const;

    // Gathers into `values`, which has the tensor's size on ranks that get it and is not used on others. Waits only for
    // pieces that are rearranged on the host: other copies end with the stream's work so far, if `values` is
    // page-locked (llmc/base/pinned.h).
    template <class T>
    void gather_into(std::span<T> values, const ModelState<T>& state, int param, int root,
                     bool only_owned = false) const;

    // Returns the tensor on rank 0 of all ranks, whatever stage has it; empty on the others. Collective over all ranks.
    template <class T>
    std::vector<T> gather_to_first(const ModelState<T>& state, int param) const;

    // Marks local work of any length, for as long as the result lives.
    std::unique_ptr<Communicator::LocalWork> local_work() const {
        return std::make_unique<Communicator::LocalWork>(group_ != nullptr ? group_ : all_, "writes a file");
    }

    // Waits for everything gathered so far.
    void wait() const {
        wait_for(stream_);
        if (group_ != nullptr) group_->note_all_done();
    }

private:
    // Brings `size` elements of rank `from`'s part to the ranks that want them, and returns their address there.
    template <class T>
    const T* fetch_piece(T* own, std::size_t size, int from, int root) const;
    // Copies `size` elements from the device to the global elements of `ranges`.
    template <class T>
    void copy_piece(std::span<T> values, const T* data, std::size_t size, const std::vector<OwnedRange>& ranges) const;

    const ParamStorage& storage_;
    Communicator* group_;
    cudaStream_t stream_;
    Communicator* all_;
    std::size_t piece_ = 0;         // elements that travel at once; the same on all ranks; 0: nothing is cut
    std::size_t crossing_ = 0;      // elements that go from one stage to another at once
    DeviceBuffer<float> arrived_;   // a piece from another rank
    DeviceBuffer<std::int32_t> holder_;
};

// ---------------------------------------------------------------------------------------------------------------------

inline Gatherer::Gatherer(const ParamStorage& storage, Communicator* group, bool gets, Arena& arena,
                          cudaStream_t stream, std::int64_t most, Communicator* all)
    : storage_(storage), group_(group), stream_(stream), all_(all) {
    const ShardPlace& place = storage.place();
    ENSURE(ranks() == group_size(place.mesh, stage_axes) && rank() == group_rank(place.mesh, place.at, stage_axes),
           "rank ", rank(), " of ", ranks(), " gathers, which is not where the storage has it in its stage");
    const bool crosses = place.mesh.pp > 1 && rank() == 0;   // tensors from one stage to the first
    crossing_ = static_cast<std::size_t>(std::min<std::int64_t>(most, 1 << 16));
    if (place.mesh.pp > 1 && all != nullptr) holder_ = arena.allocate<std::int32_t>("checkpoint/holder", 1);
    const bool cut = group != nullptr && (place.zero_stage > 0 || place.mesh.tp > 1 || place.mesh.ep > 1);
    if (!cut && !crosses) return;
    piece_ = static_cast<std::size_t>(std::min(storage.largest_owned(), most));
    if (gets || crosses) {
        const std::size_t size = crosses ? std::max(piece_, crossing_) : piece_;
        arrived_ = arena.allocate<float>("checkpoint/staging", size);
    }
}

template <class T>
const T* Gatherer::fetch_piece(T* own, std::size_t size, int from, int root) const {
    if (group_ == nullptr || from == root) return own;
    const bool wanted = root == everywhere || root == rank();
    ENSURE(size <= piece_ && (!wanted || arrived_.size() >= size), "no buffer to gather with");
    T* data = rank() == from ? own : reinterpret_cast<T*>(arrived_.data());
    if (root == everywhere) {
        group_->broadcast(data, size, from, stream_);
    } else {
        if (rank() == from) group_->send(data, size, root, stream_);
        if (rank() == root) group_->receive(data, size, from, stream_);
    }
    return data;
}

template <class T>
std::vector<T> Gatherer::gather(const ModelState<T>& state, int param, int root, bool only_owned) const {
    const bool wanted = root == everywhere || root == rank();
    std::vector<T> values(wanted ? static_cast<std::size_t>(storage_.table()[param].tensor.elements()) : 0);
    gather_into(std::span(values), state, param, root, only_owned);
    wait();
    return values;
}

template <class T>
void Gatherer::gather_into(std::span<T> values, const ModelState<T>& state, int param, int root,
                           bool only_owned) const {
    static_assert(sizeof(T) <= sizeof(float));   // arrived_ has room for floats
    ENSURE(state.storage().place() == storage_.place(), "a state of another rank");
    const TensorSpec& tensor = storage_.table()[param].tensor;
    ENSURE(state.storage().find(param) != nullptr, "this rank holds no ", storage_.table()[param].name);
    const ShardPlace& place = storage_.place();
    const StateKind kept = only_owned ? StateKind::optimizer : state.state();
    const bool cut_by_zero = is_sharded(kept, place.zero_stage);
    const bool dealt = is_dealt(tensor, place.mesh);
    const bool cut_by_tp = !is_whole_on_tp(tensor, place.mesh) && place.mesh.tp > 1;
    // a tensor that is not cut is on every rank
    const int to = root == everywhere && !cut_by_zero && !cut_by_tp && !dealt ? rank() : root;
    const bool wanted = to == everywhere || to == rank();
    ENSURE(!wanted || values.size() == static_cast<std::size_t>(tensor.elements()), "room for ", values.size(), " of ",
           tensor.elements(), " elements");
    MeshShape stage = place.mesh;
    stage.pp = 1;
    const MeshCoordinates nearest = coordinates_of(stage, std::max(to, 0));   // its copies are taken, if several exist
    T* const own = only_owned ? state.owned(param) : state.tensor(param);

    for (int from = 0; from < ranks(); from++) {
        ShardPlace theirs = place;
        theirs.at = coordinates_of(stage, from);
        auto is_near = [&](Axis axis) {
            return coordinate(stage, theirs.at, axis) == coordinate(stage, nearest, axis);
        };
        const bool takes_zero = is_near(Axis::replica) && (cut_by_zero || is_near(Axis::shard));
        const bool takes_tp = cut_by_tp || theirs.at.tp == nearest.tp;
        const bool takes_experts = cut_by_zero || is_near(Axis::holder);
        if (dealt ? !takes_experts : !takes_zero || !takes_tp) continue;
        theirs.at.pp = place.at.pp;
        const std::vector<OwnedRange> ranges = owned_ranges(tensor, theirs, kept);
        const std::int64_t end = ranges.empty() ? 0 : ranges.back().local_begin + ranges.back().length;
        const std::int64_t piece = from == to ? std::int64_t{1} << 20 : static_cast<std::int64_t>(piece_);
        for (std::int64_t begin = 0; begin < end; begin += piece) {
            const auto size = static_cast<std::size_t>(std::min(piece, end - begin));
            const T* data = fetch_piece(own + begin, size, from, to);
            if (!wanted) continue;
            copy_piece(values, data, size, ranges_within(ranges, begin, begin + static_cast<std::int64_t>(size)));
        }
    }
}

template <class T>
void Gatherer::copy_piece(std::span<T> values, const T* data, std::size_t size,
                          const std::vector<OwnedRange>& ranges) const {
    auto download = [&](T* to, const T* from, std::int64_t count) {
        CUDA_CHECK(
            cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    };
    int runs = 0;
    auto for_all_runs = [&](auto&& use) {
        for (const OwnedRange& range : ranges) for_runs(range, use);
    };
    for_all_runs([&](std::int64_t, std::int64_t, std::int64_t) { runs++; });
    constexpr int few = 4;   // so few copies cost less than a wait and a second copy
    if (runs <= few) {
        for_all_runs([&](std::int64_t global, std::int64_t local, std::int64_t count) {
            download(values.data() + global, data + local, count);
        });
        return;
    }
    std::vector<T> stored(size);
    download(stored.data(), data, static_cast<std::int64_t>(size));
    wait_for(stream_);
    for_all_runs([&](std::int64_t global, std::int64_t local, std::int64_t count) {
        std::copy_n(stored.begin() + local, count, values.begin() + global);
    });
}

template <class T>
std::vector<T> Gatherer::gather_to_first(const ModelState<T>& state, int param) const {
    const ShardPlace& place = storage_.place();
    if (place.mesh.pp == 1) return gather(state, param, 0);
    ENSURE(all_ != nullptr, "tensors of several stages, and no communicator of all ranks");
    const bool has = storage_.find(param) != nullptr, tied = storage_.table()[param].tensor.tied;
    std::vector<T> values;
    if (has && !(tied && place.at.pp > 0)) values = gather(state, param, 0);
    holder_.upload(std::vector<std::int32_t>{has && !tied ? place.at.pp : 0}, stream_);
    all_->all_reduce(holder_.data(), 1, ReduceOp::max, stream_);   // nobody knows the layers of other stages
    const int holder = holder_.download(stream_)[0];
    const bool sends = rank() == 0 && place.at.pp > 0 && place.at.pp == holder;
    const bool receives = rank() == 0 && place.at.pp == 0 && holder > 0;
    if (receives) values.resize(static_cast<std::size_t>(storage_.table()[param].tensor.elements()));
    T* const data = reinterpret_cast<T*>(arrived_.data());
    for (std::size_t begin = 0; (sends || receives) && begin < values.size(); begin += crossing_) {
        const std::size_t size = std::min(crossing_, values.size() - begin), bytes = size * sizeof(T);
        T* const here = values.data() + begin;
        if (sends) {
            CUDA_CHECK(cudaMemcpyAsync(data, here, bytes, cudaMemcpyHostToDevice, stream_));
            all_->send(data, size, 0, stream_);
        } else {
            all_->receive(data, size, rank_of(place.mesh, {holder, 0, 0, 0}), stream_);
            CUDA_CHECK(cudaMemcpyAsync(here, data, bytes, cudaMemcpyDeviceToHost, stream_));
        }
        wait_for(stream_);
    }
    all_->note_all_done();
    return place.at.pp == 0 ? values : std::vector<T>();
}
