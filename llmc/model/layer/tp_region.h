// Tensor parallelism of linear layers: the exchanges of rows before and after a matrix that tp ranks share.
// Shoeybi et al., "Megatron-LM", 2019; sequence parallelism: Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022.
//
// A column-parallel linear layer reads all rows and makes some columns; a row-parallel one makes this rank's part of a
// sum. Between a row-parallel layer and the next column-parallel one is the
// residual region, where each tp rank has all rows, or under sequence parallelism some of them:
//
//   residual region   embedding's output, norms, residual stream             RankSizes::residual_rows() rows
//   tp region         qkv, attention, attproj; fc, GELU, fcproj; classifier  RankSizes::rows() rows
//
// clang-format off
//                                              sequence parallel             not
//   into the region: begin_gather, gather      all-gather of rows            nothing
//   its gradient: sum_gradient                 reduce-scatter of rows        all-reduce
//   out of it: begin_sum                       reduce-scatter of rows        all-reduce
//   its gradient: gather_gradient              all-gather of rows            nothing
//   add_over_ranks                             all-reduce of a chunk's, in fp32
// clang-format on
//
// Bytes sent per rank, f = (tp - 1) / tp, R rows of C channels in the type of activations: a gather or scatter fRC, an
// all-reduce 2fRC. A layer makes 4 gathers or scatters forward and 6 backward (two gather the same rows again,
// so that it need not be kept), 3 more under block recompute, 2 more if gradients of weights are delayed (outputs'
// gradients are gathered again); the embedding 1 + 1, the head 1 + 1. Without sequence parallelism a layer makes 2
// all-reduces forward and 2 backward, 1 more under block recompute, the embedding 1 forward and the head 1 backward.
// Norms of whole rows of queries and keys take 4f x 4 bytes a row and layer, forward and backward. If norms come after
// sublayers, block recompute makes one more gather or scatter of a layer, or all-reduce.
//
// Overlap: traffic is on a stream of its own. In a layer's backward it hides behind matmuls, except for the first
// gather of the last layer; the head's and the embedding's exchanges do not hide. The second gather of the same rows
// hides behind the gradient of the layer's input. Sums hide behind gradients of weights, and so do the gathers of a
// layer's output gradient. For these, gradients of weights are kept back in the queue: with sequence parallelism one
// for each collective, across the boundary of two blocks too, unless recompute overwrites what it reads (from gelu+norm
// on; the first of a block's six is exposed then). Forward goes in chunks of rows: all chunks' collectives but one hide
// behind the matmuls of the others. With sequence parallelism each rank has a part of every chunk: so its rows of the
// residual region are not all next to each other in the sequence, which nothing there sees.
//
// Sums over ranks are made of activations and their gradients, in their type: in a bf16 build in bf16. NCCL adds in the
// type of the buffer and rounds at every hop of its ring; the stand-in adds in fp32 and rounds once.
#pragma once

#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stream.h"
#include "llmc/model/memory/rank_sizes.h"
#include "llmc/model/parameters/weight_gradient_queue.h"
#include "llmc/model/precision.h"
#include "llmc/process/comm.h"

// Consecutive rows.
struct Rows {
    int first, count;
};
// Returns the address of row `rows.first` of a tensor.
template <class T>
T* at_row(T* tensor, Rows rows, int channels) {
    return tensor + std::int64_t{rows.first} * channels;
}

// Returns `wanted`, or the nearest lower number of chunks that divides the rows; `parts` ranks share each chunk.
constexpr int tensor_chunks(int rows, int parts, int wanted) {
    while (wanted > 1 && rows % (wanted * parts) != 0) wanted--;
    return wanted;
}

// One a stage: all its layers exchange rows in the same memory. So what a gather returns is valid until the next one, a
// sum until the next sum; gather_gradient's rows have memory of their own.
class TpRegion {
public:
    // `group`: the tp ranks in order; null: this rank has whole matrices, and all below returns what it is given.
    // `shares_rows`: sequence parallelism. `chunks` of rows in forward: as tensor_chunks allows. `compute`: the stream
    // of the layers' kernels.
    TpRegion(Communicator* group, bool shares_rows, int chunks, Arena& arena, cudaStream_t compute);

    // Sets the sizes of the next micro-batches. The first call must have the largest.
    void set_sizes(const RankSizes& sizes);
    // True if a linear layer makes whole sums: it may then add more to them, such as the residual stream.
    bool makes_whole_sums() const { return group_ == nullptr; }

    // ---- forward, in chunks: one chunk travels while a matmul works on another.

    // Starts gathering all rows; returns where they will be. Each chunk must be waited for before it is read.
    const floatX* begin_gather(const floatX* in);
    int gathered_chunks() const { return shares_rows_ ? chunks_ : 1; }
    Rows wait_for_gathered(int chunk);   // returns the chunk's rows

    // Starts adding up a chunk of `parts` (R, C) over tp ranks, once the work given to the compute stream has made it.
    // Sums go to `to`, which is `parts` itself if this rank has all rows of the residual region; null: wherever there
    // is room. wait_for_sums() takes the same addresses and returns where the sums are.
    void begin_sum(floatX* parts, floatX* to, int chunk);
    int summed_chunks() const { return chunks_; }
    Rows rows_of(int chunk) const;
    floatX* wait_for_sums(floatX* parts, floatX* to);

    // ---- all rows at once

    // Gathers all rows. Backward gathers them again for a gradient of weights, so that they need not be kept; the queue
    // prefetches them (WeightGradient), to travel beside a matmul.
    const floatX* gather(const floatX* in);
    void prefetch(const floatX* in);

    // ---- backward. Gradients of weights that wait in the queue run behind these exchanges.

    // Adds up `din`, this rank's part of a sum.
    floatX* sum_gradient(floatX* din, WeightGradientQueue& queue);
    // Gathers a gradient of rows; gathered_gradient() returns where it leaves them.
    const floatX* gather_gradient(const floatX* dout, WeightGradientQueue& queue);
    const floatX* gathered_gradient(const floatX* dout) const { return shares_rows_ ? gradient_.data() : dout; }

    // Adds up the `sums` of rows, which each rank has made over its own columns.
    void add_over_ranks(float* sums, std::size_t count);

private:
    std::size_t elements(int rows) const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(sizes_.C); }
    void traffic_after_compute() const;
    void gather_chunk(floatX* to, const floatX* from, int chunk);
    void gather_all(floatX* to, const floatX* from);
    floatX* place_of_sums(floatX* parts, floatX* to) const;
    void sum_chunk(floatX* to, floatX* parts, int chunk);

    Communicator* group_;
    bool shares_rows_;
    int wanted_chunks_, chunks_ = 1;
    Arena& arena_;
    cudaStream_t compute_;
    RankSizes sizes_{};
    OwnedStream traffic_{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent computed_, summed_, gathered_gradient_, gathered_all_;
    std::vector<OwnedEvent> gathered_chunks_;
    const floatX* prefetched_ = nullptr;         // rows on their way into gathered_
    DeviceBuffer<floatX> gathered_, gradient_;   // (R, C) each, with sequence parallelism
    DeviceBuffer<floatX> own_rows_;              // (Rr, C), with that and several chunks
};
