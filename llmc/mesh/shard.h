// Who owns which element of a tensor: pure functions from (global tensor, place in the mesh) to ranges and back.
//
// Two cuts follow each other. Tensor parallelism cuts the global tensor into one tp shard per tp rank, along the axis
// that the parameter table names. ZeRO then cuts the tp shard, as a flat array, into equal ZeRO shards over the dp x cp
// ranks. For that the tp shard is padded, so that ZeRO shards are equal and aligned. The ZeRO cut is made for each
// tensor alone, never for a buffer of several: it depends on the tensor and the mesh only, and two pipeline stages that
// both hold the tied embedding cut it alike. Checkpoints, resharding, initialisation and collectives all use these
// functions.
//
// Storage of a rank: a state that ZeRO does not shard holds the whole tp shard, a sharded one the rank's ZeRO shard.
// `local` offsets count from the beginning of that. Padding belongs to no global element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/mesh/mesh.h"

// The axis that tensor parallelism cuts. Matrices are stored [out, in], vectors are [n, 1].
enum class TensorCut : std::uint8_t {
    none,         // every tp rank holds all of it
    rows,         // outputs (Megatron's column parallel) and the biases that go with them
    columns,      // inputs (Megatron's row parallel)
    qkv_heads,    // rows, which are the three blocks q, k, v: each is cut by heads
    vocabulary,   // rows, which need not divide evenly: the last tp shards may be short or empty
};

// What sharding has to know of a tensor.
struct GlobalTensor {
    std::int64_t rows = 0;
    std::int64_t cols = 1;
    TensorCut cut = TensorCut::none;

    std::int64_t elements() const { return rows * cols; }
};

// `length` elements that are consecutive in the global tensor and in the rank's storage.
struct OwnedRange {
    std::int64_t global_begin = 0;
    std::int64_t local_begin = 0;
    std::int64_t length = 0;
    friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// ---------------------------------------------------------------------------------------------------------------------
// Tensor parallelism: tp shards

// Slabs of the vocabulary have this many rows or a multiple, to keep the classifier's matmuls aligned.
constexpr std::int64_t vocabulary_shard_rows = 8;

// Shape of the tp shard every tp rank stores (the same on all, so short ones end in padding).
// The number of cut rows or columns must divide evenly except for `vocabulary`; main refuses other sizes by name.
GlobalTensor tp_shard_of(const GlobalTensor& tensor, int tp);

// The global elements of one tp shard, ascending in `local_begin`.
std::vector<OwnedRange> tp_shard_ranges(const GlobalTensor& tensor, int tp, int tp_rank);

// ---------------------------------------------------------------------------------------------------------------------
// ZeRO: it cuts the tp shard again

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
};

// Elements a rank stores of a tensor, padding included.
std::int64_t stored_elements(const GlobalTensor& tensor, const ShardPlace& place, StateKind state);

// The global elements a rank stores, ascending in `local_begin`.
std::vector<OwnedRange> owned_ranges(const GlobalTensor& tensor, const ShardPlace& place, StateKind state);

// The global elements of which a rank is the one owner in the whole mesh, for sums over all elements (the gradient
// norm): those that ZeRO 1 gives it, whatever the stage; of what tensor parallelism does not cut only where tp is 0, of
// a tied tensor only on the first pipeline stage. `local_begin` counts from the beginning of the rank's ZeRO shard.
std::vector<OwnedRange> sole_ranges(const GlobalTensor& tensor, bool tied, const ShardPlace& place);

// Where a global element is stored: the inverse of owned_ranges.
struct ElementHome {
    int tp_rank = -1;     // -1: on every tp rank (the tensor is not cut)
    int zero_rank = -1;   // -1: on every rank of the ZeRO group (the state is not sharded)
    std::int64_t local = 0;
};
ElementHome home_of(const GlobalTensor& tensor, const ShardPlace& place, StateKind state, std::int64_t global_element);

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
