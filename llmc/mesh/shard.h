// Computes who owns which element of a tensor: pure functions from (global tensor, place in the mesh) to ranges and
// back.
//
// Two cuts follow each other. Tensor parallelism cuts the global tensor into one tp shard per tp rank, along the axis
// that the parameter table names; expert parallelism deals experts out instead. ZeRO then cuts the tp shard, as a flat
// array, into equal ZeRO shards over the ranks of a ZeRO group. For that the tp shard is padded, so that ZeRO shards
// are equal and aligned. The ZeRO cut is made for each tensor alone, never for a buffer of several: it depends on the
// tensor and the mesh only, and two pipeline stages that both hold the tied embedding cut it alike. A tensor that
// ZeRO-1 does not cut has an owner instead. Checkpoints, resharding, initialisation and collectives all use these
// functions.
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

// Elements that are adjacent in the rank's storage, and their place in the global tensor: consecutive elements there,
// or equal pieces of each row (GlobalSpan).
struct OwnedRange {
    GlobalSpan global;
    std::int64_t local_begin = 0;
    std::int64_t length = 0;
    friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// Calls use(global element, local element, elements) for each run of elements that are consecutive on both sides.
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

// Returns the parts of these ranges at local elements [begin, end); their `local_begin` counts from `begin`.
std::vector<OwnedRange> ranges_within(const std::vector<OwnedRange>& ranges, std::int64_t begin, std::int64_t end);

// ---------------------------------------------------------------------------------------------------------------------
// Tensor parallelism: tp shards

// Rows of a vocabulary's tp shard are a multiple of this, to keep the classifier's matmuls aligned.
constexpr std::int64_t vocabulary_shard_rows = 8;

// Returns the tp shard that every tp rank stores, as a tensor (the same size on all ranks, so short shards end in
// padding). The cut rows (of each block) or columns must divide evenly by tp, except for `vocabulary`; main refuses
// other sizes by name.
TensorSpec tp_shard_of(const TensorSpec& tensor, int tp);

// Selects heads when several tp ranks hold copies of one (TensorSpec::heads).
enum class Heads : std::uint8_t {
    all,
    counted_once,   // each head once: a copied head only on the first rank that holds it
    copied,         // only heads with copies on other ranks
};

// Returns the global elements of one tp shard, ascending in `local_begin`: at most one range for each block.
std::vector<OwnedRange> tp_shard_ranges(const TensorSpec& tensor, int tp, int tp_rank, Heads which = Heads::all);

// ---------------------------------------------------------------------------------------------------------------------
// Tensor or expert parallelism: what a rank holds, a tp shard or the experts that are dealt to it

// Returns the part that each rank holds, as a tensor (the same size on all ranks).
TensorSpec held_part_of(const TensorSpec& tensor, const MeshShape& mesh);
std::vector<OwnedRange> held_ranges(const TensorSpec& tensor, const MeshShape& mesh, const MeshCoordinates& at,
                                    Heads which = Heads::all);

// ---------------------------------------------------------------------------------------------------------------------
// ZeRO: cuts the held part again

// Shards begin at multiples of this, so that 16-byte accesses and collectives are aligned for every element type.
constexpr std::int64_t shard_alignment = 64;

struct ZeroCut {
    std::int64_t shard = 0;    // elements each rank owns, padding included
    std::int64_t padded = 0;   // shard x ranks: elements of the tp shard's buffer
};
ZeroCut zero_cut(std::int64_t tp_shard_elements, int zero_ranks);

// State kept per parameter. Each ZeRO stage shards one more: 1 the optimizer's, 2 gradients, 3 parameters. The model
// computes with `unsharded`, which is always the whole tp shard.
enum class StateKind : std::uint8_t { optimizer, gradients, parameters, unsharded };
// Layers whose unsharded copies exist at once under ZeRO: one computes, one is in transfer.
constexpr int zero_layer_sets = 2;
constexpr bool is_sharded(StateKind state, int zero_stage) { return zero_stage > static_cast<int>(state); }

// ---------------------------------------------------------------------------------------------------------------------
// Both together

// Everything the functions below depend on besides the tensor.
struct RankLayout {
    MeshShape mesh;
    MeshCoordinates at;
    int zero_stage = 0;
    bool assigns_matrices = false;   // ZeRO-1 cuts no matrix of a layer: each has an owner (ParamStorage)
    bool operator==(const RankLayout&) const = default;
};

// Returns the global elements that a rank stores, ascending in `local_begin`: at most one range for each block.
std::vector<OwnedRange> owned_ranges(const TensorSpec& tensor, const RankLayout& place, StateKind state,
                                     Heads which = Heads::all);

// Returns the global elements of which a rank is the one owner in the whole mesh, for sums over all elements (the
// gradient norm): those that ZeRO-1 gives it, whatever the stage. Tensors that all tp ranks hold count only at tp 0,
// copied heads only on the first rank that holds them, a tied tensor only on the first pipeline stage, and replicas
// only in the first ZeRO group. `local_begin` counts from the beginning of the rank's ZeRO shard.
std::vector<OwnedRange> ranges_counted_once(const TensorSpec& tensor, const RankLayout& place);

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
// Does so for layers of these costs, above 0: the costliest part is as cheap as possible, and with it the sum of
// squares of the parts' costs. Layers of equal costs are cut as above.
std::vector<LayerRange> balance_layers(const std::vector<double>& costs, int parts, double embedding_cost,
                                       double classifier_cost);

// Deals work out to `ranks`: the costliest first, each to the rank with the least so far (Graham, "Bounds on
// multiprocessing timing anomalies", 1969). Returns the rank of each; of equal costs the first comes first.
std::vector<int> assign_by_cost(const std::vector<double>& costs, int ranks);
