// Describes a tensor to the code that cuts and copies it over a mesh: its shape, how it is cut, and who holds copies.
// The parameter table (llmc/model/parameters/param_table.h) has one TensorSpec for every parameter; nothing else says
// these things.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/mesh/mesh.h"

// How tensor parallelism cuts a tensor (Megatron-LM's terms), or `experts`. Matrices are stored [out, in], vectors are
// [n, 1].
enum class TensorCut : std::uint8_t {
    none,              // every tp rank holds all of it
    column_parallel,   // outputs, which are rows here, and the biases that go with them
    row_parallel,      // inputs, which are columns here
    vocabulary,        // rows, which need not divide evenly: the last tp shards may be short or empty
    experts,           // not over tp: matrices of equal numbers of rows are dealt out to ep ranks
};

struct TensorSpec {
    std::int64_t rows = 0;
    std::int64_t cols = 1;
    TensorCut cut = TensorCut::none;
    // Rows of each block. A column-parallel tensor has every block cut over all tp ranks (q, k and v, of different
    // sizes under grouped queries). The blocks add up to `rows`; empty: one block.
    std::vector<std::int64_t> blocks = {};
    // Number of heads in each block; a head cannot be cut. Empty: a block can be cut anywhere. With more tp ranks than
    // heads (then a multiple), tp / heads neighbouring ranks hold copies of one head, and its gradient is the sum over
    // them.
    std::vector<std::int64_t> heads = {};
    bool tied = false;   // held by the first and by the last pipeline stage
    int owner = -1;      // rank of zero_axes that holds all state which ZeRO-1 shards; -1: ZeRO-1 cuts this tensor too
    // More axes along which a rank's gradient is a partial sum, because sequence parallelism gives the rank some of the
    // rows.
    AxisSet partial = {};
    bool always_partial = false;   // `partial` holds without sequence parallelism too (it works on own heads)

    std::int64_t elements() const { return rows * cols; }
};

// Returns true if the ep ranks hold different experts. The ranks that hold the same experts then see all tokens of
// these, including those of other tp ranks, so their gradients need no sum over tp.
inline bool is_expert_parallel(const TensorSpec& tensor, const MeshShape& mesh) {
    return tensor.cut == TensorCut::experts && mesh.ep > 1;
}
// Returns true if every tp rank holds the same elements as this one.
inline bool is_whole_on_tp(const TensorSpec& tensor, const MeshShape& mesh) {
    return tensor.cut == TensorCut::none || (tensor.cut == TensorCut::experts && mesh.ep == 1);
}
// Returns the axes over which the tensor's ZeRO shards are cut. Its gradient is summed over these and over replicas.
inline AxisSet zero_axes_of(const TensorSpec& tensor, const MeshShape& mesh) {
    return is_expert_parallel(tensor, mesh) ? holder_axes : zero_axes;
}
