// Who owns which element of a tensor: pure functions from (global tensor, place in the mesh) to ranges and back.
//
// Two cuts follow each other. Tensor parallelism cuts the global tensor into one slab per tp rank, along the axis the
// parameter table names. ZeRO then cuts the slab, as a flat array, into equal shards over the dp x cp ranks; the slab
// is padded up so that they are equal and aligned. The ZeRO cut is per tensor, never over a buffer of several: so it
// depends on nothing but the tensor and the mesh, and the two pipeline stages that both hold the tied embedding cut it
// alike. Checkpoints, resharding, initialisation and the collectives all go through these functions.
//
// Storage of a rank: an unsharded state holds its whole slab, a sharded one holds its shard; `local` offsets count from
// the beginning of that. Padding belongs to no global element.
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
    vocabulary,   // rows, which need not divide evenly: the last slabs may be short or empty
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
// Tensor parallelism: slabs

// Slabs of the vocabulary have this many rows or a multiple, to keep the classifier's matmuls aligned.
constexpr std::int64_t vocabulary_slab_rows = 8;

// Shape of the slab every tp rank stores (the same on all, so short ones end in padding).
// The number of cut rows or columns must divide evenly except for `vocabulary`; main refuses other sizes by name.
GlobalTensor slab_of(const GlobalTensor& tensor, int tp);

// The global elements of one slab, ascending in `local_begin`.
std::vector<OwnedRange> slab_ranges(const GlobalTensor& tensor, int tp, int tp_rank);

// ---------------------------------------------------------------------------------------------------------------------
// ZeRO: shards of a slab

// Shards begin at multiples of this, so that 16-byte accesses and collectives are aligned for every element type.
constexpr std::int64_t shard_alignment = 64;

struct ZeroCut {
    std::int64_t shard = 0;    // elements each rank owns, padding included
    std::int64_t padded = 0;   // shard x ranks: the room the whole slab takes in a buffer
};
ZeroCut zero_cut(std::int64_t slab_elements, int zero_ranks);

// What is kept per parameter. Each ZeRO stage shards one more: 1 the optimizer's, 2 gradients, 3 parameters. `working`
// is what the model computes with while it does: always whole.
enum class StateKind : std::uint8_t { optimizer, gradients, parameters, working };
// Layers whose working copies exist at once under ZeRO: one that is computed with, one that travels.
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
