#include "llmc/parallel/gather.h"

#include <algorithm>

Gatherer::Gatherer(const ParamStorage& storage, Communicator* group, bool gets, Arena& arena, cudaStream_t stream,
                   std::int64_t most, Communicator* all)
    : storage_(storage), group_(group), stream_(stream), all_(all) {
    const RankLayout& place = storage.place();
    ENSURE(ranks() == group_size(place.mesh, stage_axes) && rank() == group_rank(place.mesh, place.at, stage_axes),
           "rank ", rank(), " of ", ranks(), " gathers, which is not where the storage has it in its stage");
    const bool crosses = place.mesh.pp > 1 && rank() == 0;   // tensors from one stage to the first
    crossing_ = static_cast<std::size_t>(std::min<std::int64_t>(most, 1 << 16));
    if (place.mesh.pp > 1 && all != nullptr) holder_ = arena.allocate<std::int32_t>("checkpoint/holder", 1);
    const bool cut = group != nullptr && (place.zero_stage > 0 || place.mesh.tp > 1 || place.mesh.ep > 1);
    if (!cut && !crosses) return;
    slice_ = static_cast<std::size_t>(std::min(storage.largest_owned(), most));
    if (gets || crosses) {
        const std::size_t size = crosses ? std::max(slice_, crossing_) : slice_;
        arrived_ = arena.allocate<float>("checkpoint/staging", size);
    }
}

template <class T>
const T* Gatherer::fetch_slice(T* own, std::size_t size, int from, int root) const {
    if (group_ == nullptr || from == root) return own;
    const bool wanted = root == everywhere || root == rank();
    ENSURE(size <= slice_ && (!wanted || arrived_.size() >= size), "no buffer to gather with");
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
    std::vector<T> values(wanted ? static_cast<std::size_t>(state.storage().table()[param].tensor.elements()) : 0);
    gather_into(std::span(values), state, param, root, only_owned);
    wait();
    return values;
}

template <class T>
void Gatherer::gather_into(std::span<T> values, const ModelState<T>& state, int param, int root,
                           bool only_owned) const {
    static_assert(sizeof(T) <= sizeof(float));   // arrived_ has room for floats
    ENSURE(state.storage().place() == storage_.place(), "a state of another rank");
    const TensorSpec& tensor = state.storage().table()[param].tensor;
    ENSURE(state.storage().find(param) != nullptr, "this rank holds no ", storage_.table()[param].name);
    const RankLayout& place = storage_.place();
    const StateKind kept = only_owned ? StateKind::optimizer : state.state();
    const bool cut_by_zero = is_sharded(kept, place.zero_stage);
    const bool dealt = is_expert_parallel(tensor, place.mesh);
    const bool cut_by_tp = !is_whole_on_tp(tensor, place.mesh) && place.mesh.tp > 1;
    // a tensor that is not cut is on every rank
    const int to = root == everywhere && !cut_by_zero && !cut_by_tp && !dealt ? rank() : root;
    const bool wanted = to == everywhere || to == rank();
    ENSURE(!wanted || values.size() == static_cast<std::size_t>(tensor.elements()), "room for ", values.size(), " of ",
           tensor.elements(), " elements");
    MeshShape stage = place.mesh;
    stage.pp = 1;
    const MeshCoordinates nearest = coordinates_of(stage, std::max(to, 0));   // its copies are taken, if several exist
    T* const local = only_owned ? state.owned(param) : state.tensor(param);

    for (int from = 0; from < ranks(); from++) {
        RankLayout theirs = place;
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
        const std::int64_t slice = from == to ? std::int64_t{1} << 20 : static_cast<std::int64_t>(slice_);
        for (std::int64_t begin = 0; begin < end; begin += slice) {
            const auto size = static_cast<std::size_t>(std::min(slice, end - begin));
            const T* data = fetch_slice(local + begin, size, from, to);
            if (!wanted) continue;
            copy_slice(values, data, size, ranges_within(ranges, begin, begin + static_cast<std::int64_t>(size)));
        }
    }
}

template <class T>
void Gatherer::copy_slice(std::span<T> values, const T* data, std::size_t size,
                          const std::vector<OwnedRange>& ranges) const {
    auto download = [&](T* to, const T* from, std::int64_t count) {
        copy_to_host(to, from, static_cast<std::size_t>(count) * sizeof(T), stream_);
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
    const RankLayout& place = storage_.place();
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
            copy_to_host(here, data, bytes, stream_);
        }
        wait_for(stream_);
    }
    all_->note_all_done();
    return place.at.pp == 0 ? values : std::vector<T>();
}

template std::vector<float> Gatherer::gather(const ModelState<float>&, int, int, bool) const;
template void Gatherer::gather_into(std::span<float>, const ModelState<float>&, int, int, bool) const;
template std::vector<float> Gatherer::gather_to_first(const ModelState<float>&, int) const;
template std::vector<bf16> Gatherer::gather(const ModelState<bf16>&, int, int, bool) const;
template void Gatherer::gather_into(std::span<bf16>, const ModelState<bf16>&, int, int, bool) const;
template std::vector<bf16> Gatherer::gather_to_first(const ModelState<bf16>&, int) const;
