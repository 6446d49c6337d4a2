// What cutting and copying over a mesh has to know of a tensor: its shape, how it is cut, and who holds copies of it.
// The parameter table (llmc/model/parameters/param_table.h) has one for every parameter; nothing else says these
// things.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/mesh/mesh.h"

// The axis that tensor parallelism cuts, or who has which experts. Matrices are stored [out, in], vectors are [n, 1].
enum class TensorCut : std::uint8_t {
    none,         // every tp rank holds all of it
    rows,         // outputs (Megatron's column parallel) and the biases that go with them
    columns,      // inputs (Megatron's row parallel)
    vocabulary,   // rows, which need not divide evenly: the last tp shards may be short or empty
    experts,      // by no tp rank: the matrices, rows of equal numbers, are dealt out to ep ranks
};

struct TensorSpec {
    std::int64_t rows = 0;
    std::int64_t cols = 1;
    TensorCut cut = TensorCut::none;
    // Rows of the blocks that `rows` cuts apart, each over all tp ranks (q, k and v; of different sizes under grouped
    // queries). Their sum is `rows`; empty: one block.
    std::vector<std::int64_t> blocks = {};
    // Of each block, what it has that cannot be cut (heads); empty: it can be cut anywhere. Where there are more tp
    // ranks than these, a multiple, tp / heads neighbouring ranks hold copies of one, whose gradient is the sum over
    // them.
    std::vector<std::int64_t> heads = {};
    bool tied = false;   // held by the first and by the last pipeline stage
    int owner = -1;      // the rank of zero_axes that has all of what ZeRO-1 shards; -1: ZeRO-1 cuts it, too
    // Along these too a rank's gradient is a part of a sum, where sequence parallelism gives it some of the rows.
    AxisSet partial = {};
    bool always_partial = false;   // and without sequence parallelism: it works on the rank's own heads

    std::int64_t elements() const { return rows * cols; }
};

// Whether ep ranks each hold other experts. Where they do, the ranks that hold the same ones have seen all tokens of
// these, those of other tp ranks too: no sum of their gradients over tp is left to make.
inline bool is_dealt(const TensorSpec& tensor, const MeshShape& mesh) {
    return tensor.cut == TensorCut::experts && mesh.ep > 1;
}
// Whether every tp rank holds all that this one holds.
inline bool is_whole_on_tp(const TensorSpec& tensor, const MeshShape& mesh) {
    return tensor.cut == TensorCut::none || (tensor.cut == TensorCut::experts && mesh.ep == 1);
}
// Its ZeRO shards are cut over these; its gradient is summed over them, and over replicas.
inline AxisSet zero_axes_of(const TensorSpec& tensor, const MeshShape& mesh) {
    return is_dealt(tensor, mesh) ? holder_axes : zero_axes;
}
