// Memory of a layer: the activations that its forward keeps for its backward, and the scratch of its sublayers.
//
// Each tensor stands here once, with its type and shape; visit() beside it tells its name and size. Allocation, the
// memory plan, recompute and the search for values that are not finite all read that.
//
// Shapes: R rows of a micro-batch on this rank, Rr of them in the residual region (tp_region.h), other letters as in
// RankSizes. An address is null if the model has no such tensor.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "llmc/base/dtype.h"
#include "llmc/model/memory/rank_sizes.h"
#include "llmc/model/memory/recompute.h"
#include "llmc/model/precision.h"

// A tensor that forward keeps for backward.
struct KeptTensor {
    const char* name;                            // as in llm.c
    std::int64_t elements;                       // 0: the tensor does not exist
    Recompute dropped_from = Recompute::block;   // this level and those above compute it again
    bool statistic = false;                      // no activation: Layer::show() leaves it out
    // Attention's backward may work in this memory: once the sublayer's own backward has run, nobody reads it again.
    // Not while gradients of weights are delayed.
    bool reusable = false;
    DType type = DType::fp32;   // set by visit()

    std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(type)); }
};

// Scratch of sublayers of one kind within one action; all layers share it.
struct ScratchTensor {
    const char* name;
    std::int64_t elements;      // 0: the tensor does not exist
    bool forward_too = false;   // else only backward uses it
    DType type = DType::fp32;   // set by visit()

    std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(type)); }
};

// Calls a function for each tensor of a struct; the function may set its address.
template <class Tensor>
class TensorVisitor {
public:
    template <std::invocable<const Tensor&, void*&> Function>
    TensorVisitor(Function function) : function_(std::move(function)) {}

    template <class T>
    void operator()(T*& address, Tensor tensor) const {
        tensor.type = dtype_of<T>;
        void* place = address;
        function_(tensor, place);
        address = static_cast<T*>(place);
    }

private:
    std::function<void(const Tensor&, void*& address)> function_;
};
using KeptVisitor = TensorVisitor<KeptTensor>;
using ScratchVisitor = TensorVisitor<ScratchTensor>;

// ---------------------------------------------------------------------------------------------------------------------
// Activations

// Output (rows, C) of a norm, and the statistics of each row that backward reads: null in generation, `mean` with
// RMSNorm too.
struct NormOutput {
    floatX* out = nullptr;
    float *mean = nullptr, *rstd = nullptr;
};

struct AttentionActivations {
    // (R, (NH + 2 KV) HS) queries, keys and values, rotated if positions are rotary; with Ulysses' copies of heads. In
    // delayed backward its gradient
    floatX* qkv = nullptr;
    floatX* atty = nullptr;       // (R, NH HS) input of the projection
    float* lse = nullptr;         // (B, NH, T) log-sum-exp of each query's scores
    floatX* attended = nullptr;   // (R, NH HS) attention's output, before Ulysses exchanges heads for tokens
    // Inputs of the norms of queries and keys, (R, NH HS) and (R, KV HS), and their statistics: of each head, or row
    floatX *q_raw = nullptr, *k_raw = nullptr;
    float *q_rstd = nullptr, *k_rstd = nullptr;

    void visit(const RankSizes& sizes, const KeptVisitor& visitor);
};

struct MlpActivations {
    floatX* fch = nullptr;       // (R, F) before GELU, or (R, 2F) gates and ups; in delayed backward its gradient
    floatX* fch_act = nullptr;   // (R, F) input of the projection

    void visit(const RankSizes& sizes, const KeptVisitor& visitor);
};

// K: experts of a token; M: rows of this rank's experts (RankSizes::most_expert_rows()); S: width of the shared experts
struct ExpertsActivations {
    float* logits = nullptr;           // (Rr, E) of the router; in backward their gradient
    std::int32_t* index = nullptr;     // (Rr, K) experts of each token
    std::int32_t* counts = nullptr;    // (sequences, E) tokens of each expert in a sequence, for the balance loss
    float* weight = nullptr;           // (Rr, K)
    std::int32_t* offsets = nullptr;   // (E + 1) first row of each expert, of rows in the order of experts
    std::int32_t* source = nullptr;    // (Rr K) token and choice of each such row
    std::int32_t* row = nullptr;       // (Rr, K) such row of each token and choice
    // If experts are dealt out to ranks: the same of the rows that have come to this rank's experts
    std::int32_t* held_offsets = nullptr;   // (E / ranks + 1 per chunk of these experts)
    float* held_weight = nullptr;           // (M)
    // This rank's experts, and the shared ones
    floatX* in = nullptr;                 // (M, C) if experts are dealt out; else rows of the input are gathered
    floatX* hidden = nullptr;             // (M, F) before GELU, or (M, 2F); in backward its gradient
    floatX* activated = nullptr;          // (M, F)
    floatX* shared_hidden = nullptr;      // (Rr, S), or (Rr, 2S); in backward its gradient
    floatX* shared_activated = nullptr;   // (Rr, S)

    void visit(const RankSizes& sizes, const KeptVisitor& visitor);
};

struct LayerActivations {
    NormOutput ln_1, ln_2;                          // (Rr, C), (Rr), (Rr); `out` is null if norms come after sublayers
    floatX *attproj = nullptr, *fcproj = nullptr;   // (Rr, C) norms' inputs if they do; in backward their gradients
    AttentionActivations attention;
    floatX* residual2 = nullptr;   // (Rr, C) residual stream between the sublayers
    MlpActivations mlp;            // if the model has no experts
    ExpertsActivations experts;    // else

    void visit(const RankSizes& sizes, const KeptVisitor& visitor);
};

// Lists the kept tensors of a layer, in the order of forward.
std::vector<KeptTensor> layer_kept(const RankSizes& sizes);

// Memory that attention's backward may work in: activations that nobody reads again (KeptTensor::reusable).
using ReusableMemory = std::vector<std::span<std::byte>>;
ReusableMemory reusable_memory(LayerActivations a, const RankSizes& sizes);
// Returns the bytes of each piece of it.
std::vector<std::size_t> reusable_bytes(const RankSizes& sizes);

// ---------------------------------------------------------------------------------------------------------------------
// Gradients of norms that wait, if gradients of weights are delayed

// Returns the elements from one waiting vector of gradients to the next, so that vector accesses stay aligned.
constexpr std::int64_t norm_stride(std::int64_t C) { return (C + 63) / 64 * 64; }
// Return the number of gradient vectors of a sublayer and its norm, and the elements of all of them: the norm's weight
// and bias, then the weights of the norms of queries and keys.
constexpr int norm_vectors(const ModelConfig& c) { return c.qk_norm == QkNorm::none ? 2 : 4; }
constexpr std::int64_t norm_elements(const ModelConfig& c) {
    const std::int64_t longest = c.qk_norm == QkNorm::none   ? 0
                                 : c.qk_norm == QkNorm::head ? c.head_size()
                                                             : c.heads * c.head_size();
    return norm_vectors(c) * norm_stride(std::max(c.channels, longest));
}

// ---------------------------------------------------------------------------------------------------------------------
// Scratch

struct AttentionScratch {
    floatX* dqkv = nullptr;      // as AttentionActivations::qkv
    float* delta = nullptr;      // (B, NH, T)
    float* row_sums = nullptr;   // (2, R) sums of the rows of queries and of keys, for norms of rows

    void visit(const RankSizes& sizes, const ScratchVisitor& visitor);
};

struct MlpScratch {
    floatX* dfch = nullptr;       // as MlpActivations::fch
    floatX* dfch_act = nullptr;   // (R, F) gradient of fch_act, if the MLP is gated

    void visit(const RankSizes& sizes, const ScratchVisitor& visitor);
};

struct ExpertsScratch {
    floatX* out = nullptr;                    // (M, C) outputs of experts
    floatX *dout = nullptr, *din = nullptr;   // (M, C) gradients; in the memory of `out`, one at a time
    floatX* dactivated = nullptr;             // (M, F)
    floatX* shared_dactivated = nullptr;      // (Rr, S); in the memory of `dactivated`, before that is written
    float* dweight = nullptr;                 // (Rr, K)
    float* losses = nullptr;                  // (2, Rr) balance loss and z-loss of each row
    std::int32_t* all_offsets = nullptr;      // (E + 1) offsets before any row is dropped
    // If experts are dealt out to ranks
    floatX* own_rows = nullptr;       // (Rr K, C) rows of this rank's tokens, in the order of experts
    float* own_values = nullptr;      // (Rr K)
    float* held_dweight = nullptr;    // (M)
    std::int32_t* counts = nullptr;   // (ranks, E)

    void visit(const RankSizes& sizes, const ScratchVisitor& visitor);
};

// Operands rounded to fp8 (llmc/model/layer/operands.h).
struct Fp8Scratch {
    floatX* rows = nullptr;      // activations or gradients
    floatX* weights = nullptr;   // one matmul's; all experts' of a rank

    static std::int64_t most_rows(const RankSizes& sizes);      // elements; 0 without fp8
    static std::int64_t most_weights(const RankSizes& sizes);   // likewise
    void visit(const RankSizes& sizes, const ScratchVisitor& visitor);
};

struct LayerScratch {
    Fp8Scratch fp8;
    AttentionScratch attention;
    MlpScratch mlp;           // if the model has no experts
    ExpertsScratch experts;   // else

    void visit(const RankSizes& sizes, const ScratchVisitor& visitor);
};
