// Gathers a tensor that is cut over the ranks of its pipeline stage, whole, to a host: for checkpoints, exports and
// tests. It gathers one tensor at a time, shard by shard, slice by slice. This takes one device buffer of a fixed size,
// and the tensor and a slice on the host. A part that several ranks hold is taken from the rank that gets the tensor,
// or from one whose coordinate along the other axes is that rank's.
#pragma once

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
    // memory. A slice has at most `most` elements, and no more than the largest shard. `all`: all ranks, if there are
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
    // slices that are rearranged on the host: other copies end with the stream's work so far, if `values` is
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
    const T* fetch_slice(T* local, std::size_t size, int from, int root) const;
    // Copies `size` elements from the device to the global elements of `ranges`.
    template <class T>
    void copy_slice(std::span<T> values, const T* data, std::size_t size, const std::vector<OwnedRange>& ranges) const;

    const ParamStorage& storage_;
    Communicator* group_;
    cudaStream_t stream_;
    Communicator* all_;
    std::size_t slice_ = 0;         // elements that travel at once; the same on all ranks; 0: nothing is cut
    std::size_t crossing_ = 0;      // elements that go from one stage to another at once
    DeviceBuffer<float> arrived_;   // a slice from another rank
    DeviceBuffer<std::int32_t> holder_;
};
