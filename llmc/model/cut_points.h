// Cut points: named points between the pieces of the model at which parallelism enters. One device does nothing there.
//
// Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019) cuts a sublayer between gather_to_tp and reduce_from_tp: the
// linear layer after gather_to_tp is cut by rows, the one before reduce_from_tp by columns. Outside of them is the
// residual region: there each tp rank has all rows, or some of them (sequence parallelism: Korthikanti et al.,
// "Reducing activation recomputation in large transformer models", 2022). Context parallelism lives in `attend`.
//
//   residual region   embedding's output, layernorms, residual stream     RankSizes::residual_rows() rows
//   tp region         qkv, attend, attproj; fc, GELU, fcproj; classifier   RankSizes::rows() rows
//
// No kernel works on both sides of a cut point. Each function takes data on one side and returns its address on the
// other: by default the same memory. An implementation owns the memory that it gathers into: what gather_to_tp returns
// is valid until the next gather_to_tp or will_gather_to_tp, what reduce_from_tp returns until the next reduce_from_tp
// or gather_to_tp_backward.
#pragma once

#include <functional>
#include <optional>

#include "llmc/model/attention_choice.h"
#include "llmc/model/batch.h"
#include "llmc/model/linear.h"
#include "llmc/model/memory/activations.h"
#include "llmc/model/precision.h"

template <class Real>
struct Classifier;   // llmc/kernels/rows/classifier.cuh
struct Positions;    // llmc/kernels/rows/embedding.cuh
class ExpertRanks;   // llmc/model/sublayers/expert_ranks.h

// Consecutive rows.
struct Rows {
    int first, count;
};
// Returns the address of row `rows.first` of a tensor.
template <class T>
T* at_row(T* tensor, Rows rows, int channels) {
    return tensor + std::int64_t{rows.first} * channels;
}

// A step of ring attention: `hop` sends keys and values on, on the stream `traffic`, while `block` computes attention.
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

    // Sets the sizes of the next micro-batches. The first call must have the largest.
    virtual void set_sizes(const RankSizes&) {}

    // Forward: leaves the residual region. Calls `work` for all rows, chunk by chunk, each once it has been gathered.
    using GatheredWork = std::function<void(const floatX* in, Rows rows)>;   // `in`: address of row 0
    virtual void gather_to_tp(const floatX* in, int rows, const GatheredWork& work, cudaStream_t) {
        work(in, {0, rows});
    }
    // Gathers all rows at once. Backward calls it again for a gradient of weights, so that the gathered rows need not
    // be kept. It first calls will_gather_to_tp, before a matmul that hides the gather: one of backward, or where
    // gradients of weights are delayed the one before.
    virtual const floatX* gather_to_tp(const floatX* in, cudaStream_t) { return in; }
    virtual void will_gather_to_tp(const floatX* /*in*/, cudaStream_t) {}
    // Backward of gather_to_tp: adds up `din`, this rank's part of a sum over tp ranks. Tells the queue once the
    // collective has been started; some gradients of weights may stay queued for the next one.
    virtual floatX* gather_to_tp_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t) {
        queue.collective_started();
        return din;
    }
    // Forward: returns to the residual region. `work` makes `out`, chunk by chunk: this rank's part of a sum over tp
    // ranks. Returns where the sum is: at `to`, unless that is null. `to` is `out` itself if the residual region has
    // all rows.
    using ReducedWork = std::function<void(Rows rows)>;
    virtual floatX* reduce_from_tp(floatX* out, floatX* to, int rows, const ReducedWork& work, cudaStream_t) {
        ENSURE(to == nullptr || to == out, "one device moves nothing at a cut point");
        work({0, rows});
        return out;
    }
    // True if `work` makes whole sums: it may then add more to them, such as the residual stream.
    virtual bool makes_whole_sums() const { return true; }
    virtual const floatX* reduce_from_tp_backward(const floatX* dout, WeightGradientQueue&, cudaStream_t) {
        return dout;
    }

    // Returns the positions of this rank's tokens in their sequences.
    virtual Positions positions() const;

    // Runs attention of this rank's queries over all keys that they may see. `arguments` have the heads and tokens of
    // RankSizes::attention(). `qkv` is the output of the layer below, (R, qkv_width()), and becomes q, k and v of the
    // arguments. `out` (R, NH HS) is the input of the layer above.
    virtual void attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments,
                        floatX* /*qkv*/, floatX* out, cudaStream_t stream) {
        ENSURE(out == arguments.out.data, "one device exchanges no heads");
        attention.forward(arguments, stream);
    }
    // Backward of attend. `dout` becomes the gradient that the arguments read, with q, k, v and the output as `attend`
    // left them; dq, dk and dv become `dqkv`, for the layer below. Tells the queue once the last transfer of gradients
    // has been started.
    virtual void attend_backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& arguments,
                                 floatX* /*dqkv*/, floatX* /*dout*/, const ReusableMemory& /*reusable*/,
                                 WeightGradientQueue& /*queue*/, cudaStream_t stream) {
        attention.backward(arguments, stream);
    }
    // Returns a step of the ring to measure, while nothing is in flight; none without a ring. Every rank of the ring
    // must make as many hops.
    virtual std::optional<RingStep> ring_step(const AttentionChoice<floatX>&, const AttentionForward<floatX>&) {
        return std::nullopt;
    }

    // Adds up over tp ranks the `sums` of rows, which each rank has made over its own columns.
    virtual void sum_rows(float* /*sums*/, std::size_t /*count*/, cudaStream_t) {}

    // Computes the cross-entropy of a chunk of rows of logits, of which this rank has the columns of its vocabulary
    // shard.
    virtual void vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream);
    // Gathers rows of logits, out (count, tp x Vp), of which `shard` (count, Vp) has this rank's columns. Not called on
    // one device.
    virtual void gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t);
};

// Totals of a step that the backwards of mixtures of experts add to: how many tokens each expert of each layer got, (L,
// E), and the sums of the balance loss and of the router's z-loss; on the host, how many rows this rank's experts got
// in each layer, (L), if experts are dealt out; how many assignments were dropped in each layer, (L), if experts have a
// capacity. Null: nobody reads them, or another tp rank adds the same.
struct ExpertTotals {
    std::int32_t* counts = nullptr;
    double* losses = nullptr;
    std::int32_t* held_rows = nullptr;
    std::int32_t* dropped = nullptr;
};

// Objects and settings that the pieces of a stage (embedding, sublayers, head) share, beside parameters and
// activations.
struct StageTools {
    Matmul& matmul;
    const AttentionChoice<floatX>& attention;
    CutPoints& cut_points;
    ExpertRanks& expert_ranks;
    const RankSizes& sizes;   // sizes of the current micro-batches
    const Workspace& workspace;
    int gelu_fusion;   // 0: GELU is a kernel of its own; 1: part of the matmul before it; 2: in backward too
    cudaStream_t stream;
    float z_loss = 0;           // Classifier::z_loss, in training
    float sequence_share = 0;   // weight of a sequence in losses that are means: 1 / sequences of a step
    ExpertTotals expert_totals = {};
    const float* router_bias = nullptr;   // (L, E): router_bias.h
    bool force_balance = false;           // experts are chosen in turn
    float capacity_factor = 0;            // current one (capacity.cuh); 0: experts take all tokens

    // Returns the positions of this rank's tokens: in their documents if these are masked, else in the sequence.
    Positions positions(const Batch& batch) const;
};
