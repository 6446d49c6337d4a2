// Who owns which element of a tensor: pure functions from (global tensor, place in the mesh) to ranges and back.
//
// Two cuts follow each other. Tensor parallelism cuts the global tensor into one tp shard per tp rank, along the axis
// that the parameter table names; expert parallelism deals experts out instead. ZeRO then cuts the tp shard, as a flat
// array, into equal ZeRO shards over the ranks of a ZeRO group. For that the tp shard is padded, so that ZeRO shards
// are equal and aligned. The ZeRO cut is made for each tensor alone, never for a buffer of several: it depends on the
// tensor and the mesh only, and two pipeline stages that both hold the tied embedding cut it alike. What ZeRO-1 does
// not cut has an owner instead. Checkpoints, resharding, initialisation and collectives all use these functions.
//
// Storage of a rank: a state that ZeRO does not shard holds the whole tp shard, a sharded one the rank's ZeRO shard.
// `local` offsets count from the beginning of that. Padding belongs to no global element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/base/ensure.h"
#include "llmc/kernels/global_span.h"
#include "llmc/mesh/tensor_spec.h"

// Elements that follow each other in the rank's storage, and which elements of the global tensor they are: consecutive
// ones, or equal pieces of each row (GlobalSpan).
struct OwnedRange {
    GlobalSpan global;
    std::int64_t local_begin = 0;
    std::int64_t length = 0;
    friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// use(global element, local element, elements) for each run of elements that are consecutive on both sides.
template <class Use>
void for_runs(const OwnedRange& range, Use&& use) {
    const GlobalSpan& span = range.global;
    for (std::int64_t i = 0; i < range.length;) {
        const std::int64_t left = span.length == 0 ? range.length : span.length - (span.phase + i) % span.length;
        const std::int64_t count = std::min(left, range.length - i);
        use(span.element(i), range.local_begin + i, count);
        i += count;
    }
}

// What of these ranges lies at local elements [begin, end); `local_begin` counts from `begin`.
std::vector<OwnedRange> ranges_within(const std::vector<OwnedRange>& ranges, std::int64_t begin, std::int64_t end);

// ---------------------------------------------------------------------------------------------------------------------
// Tensor parallelism: tp shards

// tp shards of the vocabulary have this many rows or a multiple, to keep the classifier's matmuls aligned.
constexpr std::int64_t vocabulary_shard_rows = 8;

// The tp shard that every tp rank stores, as a tensor (the same on all, so short ones end in padding). The number of
// cut rows, of each block, or columns must divide evenly except for `vocabulary`; main refuses other sizes by name.
TensorSpec tp_shard_of(const TensorSpec& tensor, int tp);

// Of heads that several tp ranks hold copies of (TensorSpec::heads).
enum class Heads : std::uint8_t {
    all,
    sole,     // of copies those of the first rank that holds one
    copied,   // only copies
};

// The global elements of one tp shard, ascending in `local_begin`: at most one range for each block.
std::vector<OwnedRange> tp_shard_ranges(const TensorSpec& tensor, int tp, int tp_rank, Heads which = Heads::all);

// ---------------------------------------------------------------------------------------------------------------------
// Tensor or expert parallelism: what a rank holds, a tp shard or the experts that are dealt to it

// The same on all ranks.
TensorSpec held_part_of(const TensorSpec& tensor, const MeshShape& mesh);
std::vector<OwnedRange> held_ranges(const TensorSpec& tensor, const MeshShape& mesh, const MeshCoordinates& at,
                                    Heads which = Heads::all);

// ---------------------------------------------------------------------------------------------------------------------
// ZeRO: it cuts that again

// Shards begin at multiples of this, so that 16-byte accesses and collectives are aligned for every element type.
constexpr std::int64_t shard_alignment = 64;

struct ZeroCut {
    std::int64_t shard = 0;    // elements each rank owns, padding included
    std::int64_t padded = 0;   // shard x ranks: what the tp shard takes in a buffer
};
ZeroCut zero_cut(std::int64_t tp_shard_elements, int zero_ranks);

// What is kept per parameter. Each ZeRO stage shards one more: 1 the optimizer's, 2 gradients, 3 parameters.
// `unsharded` is what the model computes with while it does: always the whole tp shard.
enum class StateKind : std::uint8_t { optimizer, gradients, parameters, unsharded };
// Layers whose unsharded copies exist at once under ZeRO: one that is computed with, one that travels.
constexpr int zero_layer_sets = 2;
constexpr bool is_sharded(StateKind state, int zero_stage) { return zero_stage > static_cast<int>(state); }

// ---------------------------------------------------------------------------------------------------------------------
// Both together

// Everything the functions below depend on besides the tensor.
struct ShardPlace {
    MeshShape mesh;
    MeshCoordinates at;
    int zero_stage = 0;
    bool deals_matrices = false;   // ZeRO-1 cuts no matrix of a layer: each has an owner (ParamStorage)
    bool operator==(const ShardPlace&) const = default;
};

// The global elements a rank stores, ascending in `local_begin`: at most one range for each block.
std::vector<OwnedRange> owned_ranges(const TensorSpec& tensor, const ShardPlace& place, StateKind state,
                                     Heads which = Heads::all);

// The global elements of which a rank is the one owner in the whole mesh, for sums over all elements (the gradient
// norm): those that ZeRO 1 gives it, whatever the stage; of what all tp ranks hold only where tp is 0, of
// heads that tp ranks hold copies of only on the first of these, of a tied tensor only on the first pipeline stage, of
// several ZeRO groups only in the first.
// `local_begin` counts from the beginning of the rank's ZeRO shard.
std::vector<OwnedRange> sole_ranges(const TensorSpec& tensor, const ShardPlace& place);

// ---------------------------------------------------------------------------------------------------------------------
// Pipeline: which layers a stage holds

struct LayerRange {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Cuts `layers` into `parts` consecutive non-empty ranges so that the costliest part is as cheap as possible. A layer
// costs 1; the first part bears the embedding and the last the classifier besides (costs in layers). Each layer in turn
// goes to the cheapest part, which is optimal for equal layers. Requires layers >= parts.
std::vector<LayerRange> balance_layers(std::int64_t layers, int parts, double embedding_cost, double classifier_cost);
