// Tensor parallelism: the cut points of tp ranks, with or without sequence parallelism (llmc/model/cut_points.h).
// Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing activation recomputation in large transformer
// models", 2022.
//
// clang-format off
//                             sequence parallel             not
//   gather_to_tp              all-gather of rows            nothing
//   gather_to_tp_backward     reduce-scatter of rows        all-reduce
//   reduce_from_tp            reduce-scatter of rows        all-reduce
//   reduce_from_tp_backward   all-gather of rows            nothing
//   sum_rows                  all-reduce of a chunk's, in fp32
//   vocabulary_loss           all-reduce of the maxima of a chunk's rows, then of two sums a row, in fp32
// clang-format on
//
// Bytes sent per rank, f = (tp - 1) / tp, R rows of C channels in the type of activations: a gather or scatter fRC, an
// all-reduce 2fRC. A layer makes 4 gathers or scatters forward and 6 backward (two gather the same rows again,
// so that it need not be kept), 3 more under block recompute, 2 more if gradients of weights are delayed (outputs'
// gradients are gathered again); the embedding 1 + 1, the head 1 + 1. Without sequence parallelism a layer makes 2
// all-reduces forward and 2 backward, 1 more under block recompute, the embedding 1 forward and the head 1 backward.
// The loss takes 6f x 4 bytes a row. Norms of whole rows of queries and keys take 4f x 4 bytes a row and layer, forward
// and backward. If norms come after sublayers, block recompute makes one more gather or scatter of a layer, or
// all-reduce.
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
#include "llmc/model/cut_points.h"
#include "llmc/process/comm.h"

// Returns `wanted`, or the nearest lower number of chunks that divides the rows; `parts` ranks share each chunk.
constexpr int tensor_chunks(int rows, int parts, int wanted) {
    while (wanted > 1 && rows % (wanted * parts) != 0) wanted--;
    return wanted;
}

class TensorParallel : public CutPoints {
public:
    // `group`: the tp ranks in order. `chunks` of rows in forward: as tensor_chunks allows.
    TensorParallel(Communicator& group, int chunks, Arena& arena);

    void set_sizes(const RankSizes& sizes) override;
    void gather_to_tp(const floatX* in, int rows, const GatheredWork& work, cudaStream_t stream) override;
    const floatX* gather_to_tp(const floatX* in, cudaStream_t stream) override;
    void will_gather_to_tp(const floatX* in, cudaStream_t stream) override;
    floatX* gather_to_tp_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t stream) override;
    floatX* reduce_from_tp(floatX* out, floatX* to, int rows, const ReducedWork& work, cudaStream_t stream) override;
    bool makes_whole_sums() const override { return false; }
    const floatX* reduce_from_tp_backward(const floatX* dout, WeightGradientQueue& queue, cudaStream_t stream) override;
    void sum_rows(float* sums, std::size_t count, cudaStream_t stream) override;
    void vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream) override;
    void gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t stream) override;

private:
    bool sequence_parallel() const { return sizes_.residual_parts > 1; }
    Rows chunk(int index) const;
    std::size_t elements(int rows) const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(sizes_.C); }
    void traffic_after(cudaStream_t compute) const;
    void gather_chunk(floatX* to, const floatX* from, int index);
    void gather(floatX* to, const floatX* from);
    floatX* place_of_sum(floatX* rows, floatX* to) const;
    void sum_chunk(floatX* to, floatX* rows, int index);

    Communicator& group_;
    int wanted_chunks_, chunks_ = 1;
    Arena& arena_;
    RankSizes sizes_{};
    OwnedStream traffic_{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent computed_, summed_, gathered_, entered_all_;
    std::vector<OwnedEvent> entered_chunks_;
    const floatX* announced_ = nullptr;         // rows on their way into entered_
    DeviceBuffer<floatX> entered_, gradient_;   // (R, C) each, with sequence parallelism
    DeviceBuffer<floatX> own_rows_;             // (Rr, C), with that and several chunks
    DeviceBuffer<float> loss_;                  // (3, R): maxima and two sums
};
