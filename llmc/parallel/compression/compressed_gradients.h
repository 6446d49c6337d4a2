// Sums gradients over data-parallel ranks in fewer bytes, with error feedback (--grad-compression).
//
// A rank sends part of its gradient and of what it left out before, and keeps what it leaves out now. So what the
// optimizer has been given and the errors of all ranks add up to all gradients, rounding of fp32 apart. What is not
// compressed (grad_compression.h) travels as without.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "llmc/model/parameters/param_storage.h"
#include "llmc/parallel/compression/grad_compression.h"
#include "llmc/process/comm.h"

// States of this rank that compression keeps, in fp32.
struct CompressionStates {
    ModelState<float> error;    // whole
    ModelState<float> factor;   // with powersgd
};

// The sum over ranks in place, unit by unit, for ZeRO stages 0 and 1.
class CompressedGradients {
public:
    virtual ~CompressedGradients() = default;
    bool takes(const TensorLayout& tensor) const { return error_.storage().find(tensor.param) != nullptr; }
    // Sums the gradients of a unit's tensors that it takes: whole, or at ZeRO 1 the part that this rank owns.
    virtual void reduce(int slot, cudaStream_t stream) = 0;

protected:
    CompressedGradients(const StateBuffers& gradients, const ModelState<float>& error, Communicator& ranks);
    bool sums_to_shards() const { return is_sharded(StateKind::optimizer, gradients_.storage().place().zero_stage); }

    // One tensor's part of its unit, from block, entry or float number `first` on. Shards: how it is cut, ShardBlocks
    // for example.
    template <class Shards>
    struct Part {
        int param;
        std::int64_t first;
        Shards shards;
    };
    // Lists by slot what cut(tensor) returns for each tensor that this takes; a unit's strides are what it has
    // together.
    template <class Cut>
    auto parts_of_units(const Cut& cut) const {
        using Shards = decltype(cut(std::declval<const TensorLayout&>()));
        const ParamStorage& storage = gradients_.storage();
        std::vector<std::vector<Part<Shards>>> units;
        for (const UnitLayout& unit : storage.units()) {
            std::vector<Part<Shards>>& parts = units.emplace_back();
            std::int64_t all = 0;   // in one shard
            for (const int i : unit.tensors) {
                const TensorLayout& tensor = storage.tensors()[static_cast<std::size_t>(i)];
                if (!takes(tensor)) continue;
                parts.push_back({tensor.param, all, cut(tensor)});
                all += parts.back().shards.of_shard();
            }
            for (Part<Shards>& part : parts) part.shards.stride = all;
        }
        return units;
    }
    template <class Shards>
    static std::int64_t largest_unit(const std::vector<std::vector<Part<Shards>>>& units) {
        std::int64_t most = 0;
        for (const auto& parts : units) most = std::max(most, parts.empty() ? 0 : parts.front().shards.stride);
        return most;
    }

    StateBuffers gradients_;
    ModelState<float> error_;
    Communicator& ranks_;
};

// `gradients` are of this rank, whole, in fp32. `ranks`: those of zero_axes.
std::unique_ptr<CompressedGradients> compressed_gradients(const GradCompressionOptions& options,
                                                          const StateBuffers& gradients,
                                                          const CompressionStates& states, Communicator& ranks,
                                                          Arena& arena);

// Bytes that a rank sends in a step for what is compressed, exactly as Communicator counts.
double compressed_traffic(const ParamStorage& storage, const GradCompressionOptions& options);
