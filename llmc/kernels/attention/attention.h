// Arguments of attention, shared by own attention (attention.cu) and library attention (library_attention.h).
//
// For every batch b, head h and query i, with the keys j that query i may see:
//     s_ij  = scale * <q_i, k_j>
//     lse_i = log(sum_j exp(s_ij))                      natural logarithm
//     out_i = sum_j exp(s_ij - lse_i) v_j
// No Tq x Tk matrix is ever stored. Backward recomputes the probabilities from lse, and lse merges the results of
// several key blocks exactly (Dao et al., "FlashAttention", 2022, algorithms 1 and 4).
//
// Must hold: HS is a multiple of 8 and at most kLargestHead; every stride is a multiple of 8 elements and every pointer
// aligned to 16 bytes, so that a head's channels can be read in 16-byte pieces; outputs do not overlap inputs or one
// another (dq, dk and dv may be interleaved in one packed tensor). A query that sees no key gets out = 0, lse =
// -infinity and gradient 0, never NaN.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "llmc/base/dtype.h"

// Implementation that computes attention (--attention; attention_kinds.h). `auto_`: the library on a CPU, the fastest
// one on a GPU. `own_sm90`: our own bf16 kernels for sm_90a, used only after their self-check has passed.
enum class AttentionKind : std::uint8_t { auto_, own, library, own_sm90 };

// A (B, T, NH, HS) tensor anywhere in memory: element (b, t, h, c) is data[b * batch + t * token + h * head + c].
// Strides are in elements; channels are always adjacent.
template <class T>
struct HeadsView {
    T* data;
    std::int64_t batch, token, head;

    template <class Const>   // converts only to a view of const T: an input may be another kernel's output
    requires(std::is_same_v<Const, const T> && !std::is_const_v<T>) operator HeadsView<Const>() const {
        return {data, batch, token, head};
    }
};

// Returns a view of a tensor of its own, (B, T, NH, HS) without gaps.
template <class T>
HeadsView<T> contiguous_heads(T* data, int tokens, int heads, int head_size) {
    std::int64_t row = std::int64_t{heads} * head_size;
    return {data, tokens * row, row, head_size};
}

// Returns a view of part 0 (q), 1 (k) or 2 (v) in the packed output of the qkv matmul. A row has NH heads of q, then
// `kv_heads` (0: NH) heads of k and as many of v.
template <class T>
HeadsView<T> packed_heads(T* qkv, int part, int tokens, int heads, int head_size, int kv_heads = 0) {
    if (kv_heads == 0) kv_heads = heads;
    const std::int64_t row = std::int64_t{heads + 2 * kv_heads} * head_size;
    const std::int64_t first = part == 0 ? 0 : heads + (part - 1) * std::int64_t{kv_heads};
    return {qkv + first * head_size, tokens * row, row, head_size};
}

inline constexpr int kLargestHead = 256;   // largest HS

// Documents that share a sequence and do not see each other, and sliding windows: query i of batch b sees no key before
// first[b * batch + i]. first[] never decreases along a sequence. It may lie past the last key: then the query sees
// none.
struct FirstKeys {
    const int* first = nullptr;   // on the device; null: documents mask no key
    std::int64_t batch = 0;       // elements from one sequence to the next
    // On the host: the pairs of a query and a key that are seen, of all sequences; null: they are not counted. A ring
    // has one number for each of its steps, which have their own first keys; a step of 0 pairs is not computed.
    const std::int64_t* step_pairs = nullptr;
};

// Sizes and mask. Query i is at position q0 + i of the whole sequence and key j at k0 + j; when `causal`, query i sees
// key j only where k0 + j <= q0 + i. Plain self-attention has Tq = Tk and q0 = k0 = 0; a block of ring attention has
// any of them.
struct AttentionShape {
    int B, NH, Tq, Tk, HS;
    float scale;   // factor of the scores, usually 1 / sqrt(HS)
    bool causal = true;
    std::int64_t q0 = 0, k0 = 0;
    // Heads of q that share one head of k and v: Ainslie et al., "GQA: training generalized multi-query transformer
    // models", 2023. Head h of q reads head h / group of k and v, whose gradients are sums over the group.
    int group = 1;
    FirstKeys documents = {};
    bool masks_documents = false;   // calls will have `documents`, or windows: tells attention_refusal beforehand

    int kv_heads() const { return NH / group; }
};

// Returns the bytes from the first to past the last element of a view, and those of its elements alone.
template <class T>
std::size_t view_span(const HeadsView<T>& view, const AttentionShape& s, int tokens, int heads) {
    const std::int64_t last = (s.B - 1) * view.batch + (tokens - 1) * view.token + (heads - 1) * view.head + s.HS;
    return static_cast<std::size_t>(last) * sizeof(T);
}
template <class T>
std::size_t view_bytes(const HeadsView<T>&, const AttentionShape& s, int tokens, int heads) {
    return static_cast<std::size_t>(std::int64_t{s.B} * tokens * heads * s.HS) * sizeof(T);
}

inline AttentionShape self_attention_shape(int B, int T, int NH, int HS, bool causal = true, int group = 1) {
    return {B, NH, T, T, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, 0, 0, group};
}

// T: element type of q, k, v (float or bf16). O: element type of the output; float lets the results of several key
// blocks be merged without rounding in between.
template <class T, class O = T>
struct AttentionForward {
    HeadsView<O> out;             // (B, Tq, NH, HS)
    float* lse;                   // (B, NH, Tq)
    HeadsView<const T> q, k, v;   // (B, Tq, NH, HS), (B, Tk, kv heads, HS), (B, Tk, kv heads, HS)
    AttentionShape shape;
};

// Arguments of backward, which overwrites dq, dk and dv with gradients of sum(out * dout). `out` and `lse` belong to
// the whole row: if k and v are one of several blocks, they are the merged ones, and the dq of all blocks add up to the
// gradient. G: element type of the gradients; float lets the blocks of a ring add up without rounding.
template <class T, class G = T>
struct AttentionBackward {
    HeadsView<G> dq, dk, dv;        // shaped as q, k, v
    float* delta;                   // scratch (B, NH, Tq): sum over channels of dout * out
    HeadsView<const T> dout, out;   // (B, Tq, NH, HS)
    const float* lse;               // (B, NH, Tq)
    HeadsView<const T> q, k, v;     // as in forward
    AttentionShape shape;
};

// Compute own attention, asynchronously on `stream`. Compiled in attention.cu for T = O = G = float, T = O = G = bf16,
// and T = bf16 with O = G = float. Deterministic: no atomics, every sum in a fixed order. Throws Error(bug) where the
// conditions above do not hold.
template <class T, class O>
void own_attention_forward(const AttentionForward<T, O>& arguments, cudaStream_t stream);
template <class T, class G>
void own_attention_backward(const AttentionBackward<T, G>& arguments, cudaStream_t stream);

// Compute own attention with the kernels for sm_90a (attention_hopper_forward.cuh, attention_hopper_backward.cuh); O
// and G are bf16 or float. Within their limits (attention_kinds.h). `workspace` is device memory, overwritten.
template <class O>
void sm90_attention_forward(const AttentionForward<bf16, O>& arguments, cudaStream_t stream);
template <class G>
void sm90_attention_backward(const AttentionBackward<bf16, G>& arguments, std::span<float> workspace,
                             cudaStream_t stream);

// Returns the size, in floats, of backward's workspace on the device. No values are kept there between calls. It
// suffices for fewer tokens too.
std::size_t sm90_attention_workspace(const AttentionShape& shape);

// Returns why the current device cannot run the kernels for sm_90a; empty if it can. Either it is not an sm_90 device,
// or it disagrees with plain kernels, which every call tries (self_check_sm90).
std::string sm90_attention_refusal();

// Chooses for the whole process whether our own bf16 kernels, of attention and of experts, run on tensor cores (the
// default) or on fp32 multiply-adds, for devices whose instructions disagree with their models (self_check.h).
void use_tensor_cores(bool use);
bool uses_tensor_cores();
