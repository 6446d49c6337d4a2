// Sums gradients over data-parallel ranks in fewer bytes, with error feedback (--grad-compression).
//
// A rank sends part of its gradient and of what it left out before, and keeps what it leaves out now. So what the
// optimizer has been given and the errors of all ranks add up to all gradients, rounding of fp32 apart. What is not
// compressed (grad_compression.h) travels as without.
//
// With --zero-group only what travels between the groups is compressed, where links are slow: each rank holds its
// group's sum of the elements that it owns, and the owners of the same ones in all groups come to their sum. So the
// error is a shard's, too, and any stage from 1 on will do.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "llmc/model/parameters/param_storage.h"
#include "llmc/parallel/compression/grad_compression.h"
#include "llmc/parallel/gradient_codec.h"
#include "llmc/process/comm.h"

// States of this rank that compression keeps, in fp32.
struct CompressionStates {
    ModelState<float> error;    // as large as what this rank sends: the gradient, or between groups its part
    ModelState<float> factor;   // with powersgd
};

// The sum over ranks in place, unit by unit: over the ranks of one group for ZeRO stages 0 and 1, or between groups.
class CompressedGradients : public GradientCodec {
public:
    bool takes(const TensorLayout& tensor) const override { return error_.storage().find(tensor.param) != nullptr; }

protected:
    CompressedGradients(const StateBuffers& gradients, const ModelState<float>& error, Communicator& ranks);
    // True if each of `ranks` needs another part of the sum.
    bool sums_to_shards() const {
        return !between_groups_ && is_sharded(StateKind::optimizer, gradients_.storage().place().zero_stage);
    }
    // Returns the elements of a tensor that this rank sends, and where they and their error are.
    std::int64_t elements(const TensorLayout& tensor) const { return between_groups_ ? tensor.kept : tensor.padded; }
    float* gradient(int param) const {
        return (between_groups_ ? gradients_.owned(param) : gradients_.tensor(param)).as<float>();
    }
    float* error(int param) const { return error_.tensor(param); }

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

    bool between_groups_;
    StateBuffers gradients_;
    ModelState<float> error_;
    Communicator& ranks_;
};

// `gradients` are of this rank, in fp32. `ranks`: those of replica_axes if there are several, and else those of
// zero_axes, for whom gradients must be whole.
std::unique_ptr<CompressedGradients> compressed_gradients(const GradCompressionOptions& options,
                                                          const StateBuffers& gradients,
                                                          const CompressionStates& states, Communicator& ranks,
                                                          Arena& arena);

// Bytes that a rank sends in a step for what is compressed, exactly as Communicator counts.
double compressed_traffic(const ParamStorage& storage, const GradCompressionOptions& options);
