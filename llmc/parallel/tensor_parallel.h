// Tensor parallelism: the cut points of tp ranks, with or without sequence parallelism (llmc/model/cut_points.h).
// Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing activation recomputation in large transformer
// models", 2022.
//
// clang-format off
//                             sequence parallel             not
//   enter_columns             all-gather of rows            nothing
//   enter_columns_backward    reduce-scatter of rows        all-reduce
//   leave_rows                reduce-scatter of rows        all-reduce
//   leave_rows_backward       all-gather of rows            nothing
//   vocabulary_loss           all-reduce of the maxima of a chunk's rows, then of two sums a row, in fp32
// clang-format on
//
// Bytes sent per rank, f = (tp - 1) / tp, R rows of C channels in the type of activations: a gather or scatter fRC, an
// all-reduce 2fRC. A layer makes 4 gathers or scatters forward and 6 backward (two gather what entered columns again,
// so that it need not be kept), 3 more under block recompute; the embedding 1 + 1, the head 1 + 1. Without sequence
// parallelism a layer makes 2 all-reduces forward and 2 backward, 1 more under block recompute, the embedding 1 forward
// and the head 1 backward. The loss 6f x 4 bytes a row.
//
// What is summed over ranks here is activations and their gradients, in their type: in a bf16 build in bf16. NCCL adds
// in the type of the buffer and rounds at every hop of its ring; the stand-in adds in fp32 and rounds once.
#pragma once

#include "llmc/base/arena.h"
#include "llmc/model/cut_points.h"
#include "llmc/process/comm.h"

class TensorParallel : public CutPoints {
public:
    // `group`: the tp ranks in order.
    TensorParallel(Communicator& group, Arena& arena) : group_(group), arena_(arena) {}

    void set_sizes(const RankSizes& sizes) override;
    const floatX* enter_columns(const floatX* in, cudaStream_t stream) override;
    floatX* enter_columns_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t stream) override;
    floatX* leave_rows(floatX* out, floatX* to, cudaStream_t stream) override;
    const floatX* leave_rows_backward(const floatX* dout, cudaStream_t stream) override;
    void vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream) override;
    void gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t stream) override;

private:
    bool sequence_parallel() const { return sizes_.residual_parts > 1; }
    std::size_t elements() const {
        return static_cast<std::size_t>(sizes_.rows()) * static_cast<std::size_t>(sizes_.C);
    }
    std::size_t piece() const { return elements() / static_cast<std::size_t>(group_.size()); }
    floatX* sum(floatX* rows, floatX* to, cudaStream_t stream);

    Communicator& group_;
    Arena& arena_;
    RankSizes sizes_{};
    DeviceBuffer<floatX> entered_, gradient_;   // (R, C) each, with sequence parallelism
    DeviceBuffer<float> loss_;                  // (3, R): maxima and two sums
};
