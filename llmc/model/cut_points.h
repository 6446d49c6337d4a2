// Where parallelism enters the model: named points between its pieces, at which one device does nothing.
//
// Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019) cuts a sublayer between enter_columns and leave_rows: the
// layers after the one are cut by rows, those before the other by columns. Outside of them is the residual region:
// there each tp rank has all rows, or some of them (sequence parallelism: Korthikanti et al., "Reducing activation
// recomputation in large transformer models", 2022). Context parallelism lives in `attend`.
//
//   residual region   embedding's output, layernorms, residual stream     RankSizes::residual_rows() rows
//   columns to rows   qkv, attend, attproj; fc, GELU, fcproj; classifier   RankSizes::rows() rows
//
// A kernel never does work of both sides of a cut point. Each function takes what is on one side and returns where it
// is on the other: by default the same memory. An implementation has memory of its own for what it gathers: what enters
// columns is valid until something else is announced or enters, what leaves rows until the next of these or of
// enter_columns_backward. "Columns" are Megatron's, of X W: rows of our matrices, which are [out, in].
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "llmc/model/activations.h"
#include "llmc/model/attention_choice.h"
#include "llmc/model/batch.h"
#include "llmc/model/linear.h"
#include "llmc/model/precision.h"

template <class Real>
struct Classifier;   // llmc/kernels/rows/classifier.cuh
struct Positions;    // llmc/kernels/rows/embedding.cuh
class ExpertRanks;   // llmc/model/sublayers/expert_ranks.h

// Rows that follow each other.
struct Rows {
    int first, count;
};

// Memory that a cut point may work in: activations that nobody reads again (KeptTensor::lent).
using LentMemory = std::vector<std::span<std::byte>>;

// A step of a ring: keys and values travel (on a stream of their own) while a block of attention is computed.
struct RingStep {
    std::function<void()> hop, block;
    cudaStream_t traffic;
};
struct RingTimes {
    double hop_s, block_s;
};

class CutPoints {
public:
    virtual ~CutPoints() = default;

    // Sizes of the micro-batches from now on: first the largest there will be.
    virtual void set_sizes(const RankSizes&) {}

    // Forward: from the residual region. `work` is given all rows that are to enter, chunk by chunk, each when it has.
    using EnteringWork = std::function<void(const floatX* in, Rows rows)>;   // `in`: the first of all rows
    virtual void enter_columns(const floatX* in, int rows, const EnteringWork& work, cudaStream_t) {
        work(in, {0, rows});
    }
    // All rows at once. Called again in backward, where a gradient of weights reads what was entered with: it need not
    // be kept. There it is announced first, before the matmul behind which it can be fetched, unless gradients of
    // weights are delayed.
    virtual const floatX* enter_columns(const floatX* in, cudaStream_t) { return in; }
    virtual void will_enter_columns(const floatX* /*in*/, cudaStream_t) {}
    // Its backward: `din` is this rank's part of a sum over tp ranks. Tells the queue when that is under way; some
    // gradients of weights may still wait for the next collective.
    virtual floatX* enter_columns_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t) {
        queue.collective_started();
        return din;
    }
    // Forward: back to the residual region. `work` makes `out`, chunk by chunk: this rank's part of a sum over tp
    // ranks. `to`: where it must be then, or null. It is `out` itself where the residual region has all rows.
    using LeavingWork = std::function<void(Rows rows)>;
    virtual floatX* leave_rows(floatX* out, floatX* to, int rows, const LeavingWork& work, cudaStream_t) {
        ENSURE(to == nullptr || to == out, "one device moves nothing at a cut point");
        work({0, rows});
        return out;
    }
    // Whether `work` makes whole sums, to which more may be added in it, such as the residual stream.
    virtual bool leaves_whole_sums() const { return true; }
    virtual const floatX* leave_rows_backward(const floatX* dout, WeightGradientQueue&, cudaStream_t) { return dout; }

    // Which positions of a sequence this rank's tokens are.
    virtual Positions positions() const;

    // Attention of this rank's queries over all keys that they may see. `arguments` have the heads and tokens of
    // RankSizes::attention(). Before, `qkv` (R, 3 NH HS) is what the layer below has made; it becomes q, k and v of the
    // arguments. `out` (R, NH HS) is what the layer above takes.
    virtual void attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments,
                        floatX* /*qkv*/, floatX* out, cudaStream_t stream) {
        ENSURE(out == arguments.out.data, "one device exchanges no heads");
        attention.forward(arguments, stream);
    }
    // `dout` becomes that of the arguments, which read q, k, v and the output as `attend` has left them; dq, dk and dv
    // become `dqkv`, as the layer below takes it. Tells the queue when gradients are on their last way.
    virtual void attend_backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& arguments,
                                 floatX* /*dqkv*/, floatX* /*dout*/, const LentMemory& /*lent*/,
                                 WeightGradientQueue& /*queue*/, cudaStream_t stream) {
        attention.backward(arguments, stream);
    }
    // For measuring, while nothing is under way; none where there is no ring. Every rank of the ring makes as many
    // hops.
    virtual std::optional<RingStep> ring_step(const AttentionChoice<floatX>&, const AttentionForward<floatX>&) {
        return std::nullopt;
    }

    // `sums` of rows that ranks share, of this rank's columns: become those of all.
    virtual void sum_rows(float* /*sums*/, std::size_t /*count*/, cudaStream_t) {}

    // Cross-entropy of a chunk of rows of logits, of which this rank has the columns of its shard of the vocabulary.
    virtual void vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream);
    // out (count, vocabulary parts x Vp) = the rows of logits of which `shard` (count, Vp) has this rank's columns. Not
    // called on one device.
    virtual void gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t);
};

// Of a step, what mixtures of experts add to in backward: how many tokens each expert of each layer got, (L, E), and
// the sums of the balance loss and of the router's z-loss. Null: nobody wants to know, or another tp rank adds the
// same.
struct ExpertTotals {
    std::int32_t* counts = nullptr;
    double* losses = nullptr;
};

// What the pieces of a stage (embedding, sublayers, head) work with, beside parameters and activations.
struct StageTools {
    Matmul& matmul;
    const AttentionChoice<floatX>& attention;
    CutPoints& cut_points;
    ExpertRanks& expert_ranks;
    const RankSizes& sizes;   // of the micro-batches at hand
    const Workspace& workspace;
    int gelu_fusion;   // 0: GELU is a kernel of its own; 1: part of the matmul before it; 2: in backward too
    cudaStream_t stream;
    float z_loss = 0;           // Classifier::z_loss, in training
    float sequence_share = 0;   // what a sequence counts in losses that are means over a step's: 1 / their number
    ExpertTotals expert_totals = {};
    const float* router_bias = nullptr;   // (L, E): router_bias.h
    DocumentsView documents = {};         // of the micro-batch at hand, where they are masked

    // Of this rank's tokens: in their documents where these are masked, else in the sequence.
    Positions positions() const;
};
