// Computes attention on a CPU, block by block: blocks of queries against blocks of keys, multiplied by oneDNN, softmax
// in vector loops. It serves as cuDNN does on a GPU; llmc/kernels passes its own argument structs (AttentionForward,
// AttentionBackward and AttentionMask, whose members are used here by name; the mask is that of sequence b).
//
// Both passes keep a running block in fp32 (FlashAttention's online softmax, and its recomputation in backward). Blocks
// of keys that the mask hides are skipped, and the last visible one is cut short. bf16 is widened block by block.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "llmc/cuda_on_cpu/blas/gemm.h"
#include "llmc/cuda_on_cpu/blas/vector_math.h"

namespace host::attention {

using std::int64_t;

constexpr int query_block = 128, key_block = 256;

// Maps bf16 to the type that the vector conversions take.
template <class T>
struct Stored {
    using type = T;
};
template <>
struct Stored<__nv_bfloat16> {
    using type = std::uint16_t;
};
template <class T>
using StoredType = std::conditional_t<std::is_const_v<T>, const typename Stored<std::remove_const_t<T>>::type,
                                      typename Stored<T>::type>;

// Rows of HS channels in fp32.
struct Rows {
    const float* data;
    int64_t stride;
};

template <class View>
using Element = std::remove_pointer_t<decltype(View::data)>;

template <class View>
StoredType<Element<View>>* row_of(const View& view, int b, int h, int64_t t) {
    return reinterpret_cast<StoredType<Element<View>>*>(view.data + b * view.batch + t * view.token + h * view.head);
}

// Returns tokens t .. t+count-1 of one head: in place if they are fp32, else widened into `buffer`.
template <class View>
Rows load(const View& view, int b, int h, int64_t t, int count, int HS, std::vector<float>& buffer) {
    if constexpr (std::is_same_v<Element<View>, const float>) {
        (void)count, (void)HS, (void)buffer;
        return {row_of(view, b, h, t), view.token};
    } else {
        buffer.resize(static_cast<std::size_t>(count) * HS);
        for (int i = 0; i < count; i++) {
            const std::uint16_t* from = row_of(view, b, h, t + i);
            float* __restrict to = buffer.data() + static_cast<int64_t>(i) * HS;
            for (int c = 0; c < HS; c++) to[c] = widen(from[c]);
        }
        return {buffer.data(), HS};
    }
}

template <class View>
void store(const View& view, int b, int h, int64_t t, int count, int HS, const float* rows) {
    for (int i = 0; i < count; i++) {
        StoredType<Element<View>>* __restrict to = row_of(view, b, h, t + i);
        const float* from = rows + static_cast<int64_t>(i) * HS;
        for (int c = 0; c < HS; c++) narrow(from[c], to + c);
    }
}

// Return, counted from j0, the first of the keys j0 .. j0+keys-1 that query i sees, and the one after the last.
template <class Mask>
int seen_begin(const Mask& mask, int64_t i, int64_t j0, int keys) {
    return static_cast<int>(std::clamp<int64_t>(mask.begin(static_cast<int>(i)) - j0, 0, keys));
}
template <class Mask>
int seen_end(const Mask& mask, int64_t i, int64_t j0, int keys) {
    return static_cast<int>(std::clamp<int64_t>(mask.end(static_cast<int>(i)) - j0, 0, keys));
}

inline float dot(const float* a, const float* b, int n) {
    float lanes[16] = {};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; l++) lanes[l] += a[i + l] * b[i + l];
    }
    for (; i < n; i++) lanes[0] += a[i] * b[i];
    float sum = 0;
    for (float lane : lanes) sum += lane;
    return sum;
}

inline float largest(const float* x, int n) {
    float lanes[16];
    std::fill(lanes, lanes + 16, -std::numeric_limits<float>::infinity());
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; l++) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    }
    for (; i < n; i++) lanes[0] = std::max(lanes[0], x[i]);
    return *std::max_element(lanes, lanes + 16);
}

// Computes x[i] = exp(x[i] - shift) for the first n of `length` elements and 0 for the others; returns their sum.
inline float exponentials(float* __restrict x, float shift, int n, int length) {
    float lanes[16] = {};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; l++) {
            x[i + l] = vector_exp(x[i + l] - shift);
            lanes[l] += x[i + l];
        }
    }
    for (; i < n; i++) {
        x[i] = vector_exp(x[i] - shift);
        lanes[0] += x[i];
    }
    std::fill(x + n, x + length, 0.0f);
    float sum = 0;
    for (float lane : lanes) sum += lane;
    return sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

struct ForwardScratch {
    std::vector<float> q, k, v, scores, sums, highest, total;
};

// Adds a block of scores to the running softmax: scores become exp(score - highest), and the sums so far are rescaled
// where `highest` has grown.
template <class Mask>
void online_softmax(ForwardScratch& w, const Mask& mask, int HS, int64_t i0, int queries, int64_t j0, int keys) {
    for (int i = 0; i < queries; i++) {
        float* row = w.scores.data() + static_cast<int64_t>(i) * keys;
        const int first = seen_begin(mask, i0 + i, j0, keys), seen = seen_end(mask, i0 + i, j0, keys) - first;
        if (seen <= 0) {
            std::fill(row, row + keys, 0.0f);
            continue;
        }
        std::fill(row, row + first, 0.0f);
        row += first;
        float before = w.highest[i], highest = std::max(before, largest(row, seen));
        float rescale = vector_exp(before - highest);   // 0 at the first block, where `before` is -infinity
        float* sums = w.sums.data() + static_cast<int64_t>(i) * HS;
        if (rescale != 1.0f) {
            for (int c = 0; c < HS; c++) sums[c] *= rescale;
        }
        w.total[i] = w.total[i] * rescale + exponentials(row, highest, seen, keys - first);
        w.highest[i] = highest;
    }
}

// Computes the outputs of one block of queries of a head.
template <class Forward, class Mask>
void forward_block(const Forward& a, const Mask& mask, int b, int h, int block) {
    static thread_local ForwardScratch w;
    const auto& s = a.shape;
    const int64_t i0 = int64_t{block} * query_block;
    const int queries = static_cast<int>(std::min<int64_t>(query_block, s.Tq - i0));
    Rows q = load(a.q, b, h, i0, queries, s.HS, w.q);
    w.sums.assign(static_cast<std::size_t>(queries) * s.HS, 0.0f);
    w.highest.assign(queries, -std::numeric_limits<float>::infinity());
    w.total.assign(queries, 0.0f);
    const int kv_head = h / s.group, keys_seen = seen_end(mask, i0 + queries - 1, 0, s.Tk);
    for (int j0 = seen_begin(mask, i0, 0, s.Tk); j0 < keys_seen; j0 += key_block) {
        const int keys = std::min(key_block, keys_seen - j0);
        Rows k = load(a.k, b, kv_head, j0, keys, s.HS, w.k), v = load(a.v, b, kv_head, j0, keys, s.HS, w.v);
        w.scores.resize(static_cast<std::size_t>(queries) * keys);
        sgemm_on_this_thread(false, true, queries, keys, s.HS, s.scale, q.data, q.stride, k.data, k.stride, 0.0f,
                             w.scores.data(), keys);
        online_softmax(w, mask, s.HS, i0, queries, j0, keys);
        sgemm_on_this_thread(false, false, queries, s.HS, keys, 1.0f, w.scores.data(), keys, v.data, v.stride, 1.0f,
                             w.sums.data(), s.HS);
    }
    float* lse = a.lse + (int64_t{b} * s.NH + h) * s.Tq + i0;
    for (int i = 0; i < queries; i++) {
        float* sums = w.sums.data() + static_cast<int64_t>(i) * s.HS;
        float inverse = w.total[i] > 0 ? 1.0f / w.total[i] : 0.0f;
        for (int c = 0; c < s.HS; c++) sums[c] *= inverse;
        lse[i] = w.highest[i] + std::log(w.total[i]);   // -infinity where no key was seen
    }
    store(a.out, b, h, i0, queries, s.HS, w.sums.data());
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

struct BackwardScratch {
    std::vector<float> q, k, v, dout, out, p, ds, dq, dk, dv;
};

// Computes p = exp(score - lse) and ds = p * (dp - delta), in place of the scores and of dp = dout v^T.
template <class Mask>
void probabilities(BackwardScratch& w, const Mask& mask, const float* lse, const float* delta, int64_t i0, int queries,
                   int64_t j0, int keys) {
    for (int i = 0; i < queries; i++) {
        float* __restrict p = w.p.data() + static_cast<int64_t>(i) * keys;
        float* __restrict ds = w.ds.data() + static_cast<int64_t>(i) * keys;
        int first = seen_begin(mask, i0 + i, j0, keys), seen = std::max(seen_end(mask, i0 + i, j0, keys), first);
        std::fill(p, p + first, 0.0f);
        std::fill(ds, ds + first, 0.0f);
        exponentials(p + first, lse[i0 + i], seen - first, keys - first);
        float d = delta[i0 + i];
        for (int j = first; j < seen; j++) ds[j] = p[j] * (ds[j] - d);
        std::fill(ds + seen, ds + keys, 0.0f);
    }
}

template <class Backward>
void compute_delta(const Backward& a, BackwardScratch& w, int b, int h, float* delta) {
    const int HS = a.shape.HS;
    for (int64_t i0 = 0; i0 < a.shape.Tq; i0 += query_block) {
        int queries = static_cast<int>(std::min<int64_t>(query_block, a.shape.Tq - i0));
        Rows out = load(a.out, b, h, i0, queries, HS, w.out), dout = load(a.dout, b, h, i0, queries, HS, w.dout);
        for (int i = 0; i < queries; i++) {
            delta[i0 + i] = dot(out.data + i * out.stride, dout.data + i * dout.stride, HS);
        }
    }
}

// Adds the contribution of one block of queries to the gradients: to its own dq, and to the keys' dk and dv.
template <class Backward, class Mask>
void backward_pair(const Backward& a, const Mask& mask, BackwardScratch& w, int b, int h, const float* delta, float* dq,
                   int64_t i0, int64_t j0, int keys, const Rows& k, const Rows& v) {
    const auto& s = a.shape;
    const int HS = s.HS, queries = static_cast<int>(std::min<int64_t>(query_block, s.Tq - i0));
    Rows q = load(a.q, b, h, i0, queries, HS, w.q), dout = load(a.dout, b, h, i0, queries, HS, w.dout);
    w.p.resize(static_cast<std::size_t>(queries) * keys);
    w.ds.resize(static_cast<std::size_t>(queries) * keys);
    sgemm_on_this_thread(false, true, queries, keys, HS, s.scale, q.data, q.stride, k.data, k.stride, 0.0f, w.p.data(),
                         keys);
    sgemm_on_this_thread(false, true, queries, keys, HS, 1.0f, dout.data, dout.stride, v.data, v.stride, 0.0f,
                         w.ds.data(), keys);
    const float* lse = a.lse + (int64_t{b} * s.NH + h) * s.Tq;
    probabilities(w, mask, lse, delta, i0, queries, j0, keys);
    sgemm_on_this_thread(true, false, keys, HS, queries, 1.0f, w.p.data(), keys, dout.data, dout.stride, 1.0f,
                         w.dv.data(), HS);
    sgemm_on_this_thread(true, false, keys, HS, queries, s.scale, w.ds.data(), keys, q.data, q.stride, 1.0f,
                         w.dk.data(), HS);
    sgemm_on_this_thread(false, false, queries, HS, keys, s.scale, w.ds.data(), keys, k.data, k.stride, 1.0f,
                         dq + i0 * HS, HS);
}

// Computes all gradients of a head of k and v, and of the heads of q that read it.
template <class Backward, class Mask>
void backward_kv_head(const Backward& a, const Mask& mask, int b, int kv_head) {
    static thread_local BackwardScratch w;
    const auto& s = a.shape;
    const int first = kv_head * s.group, end = first + s.group;
    const int64_t head_elements = int64_t{s.Tq} * s.HS;
    auto delta_of = [&](int h) { return a.delta + (int64_t{b} * s.NH + h) * s.Tq; };
    auto dq_of = [&](int h) { return w.dq.data() + (h - first) * head_elements; };
    for (int h = first; h < end; h++) compute_delta(a, w, b, h, delta_of(h));
    w.dq.assign(static_cast<std::size_t>(s.group * head_elements), 0.0f);
    for (int64_t j0 = 0; j0 < s.Tk; j0 += key_block) {
        const int keys = static_cast<int>(std::min<int64_t>(key_block, s.Tk - j0));
        Rows k = load(a.k, b, kv_head, j0, keys, s.HS, w.k), v = load(a.v, b, kv_head, j0, keys, s.HS, w.v);
        w.dk.assign(static_cast<std::size_t>(keys) * s.HS, 0.0f);
        w.dv.assign(static_cast<std::size_t>(keys) * s.HS, 0.0f);
        for (int h = first; h < end; h++) {
            for (int64_t i0 = 0; i0 < s.Tq; i0 += query_block) {
                const int64_t last = std::min<int64_t>(i0 + query_block, s.Tq) - 1;
                if (seen_end(mask, last, j0, keys) > 0 && seen_begin(mask, i0, j0, keys) < keys)
                    backward_pair(a, mask, w, b, h, delta_of(h), dq_of(h), i0, j0, keys, k, v);
            }
        }
        store(a.dk, b, kv_head, j0, keys, s.HS, w.dk.data());
        store(a.dv, b, kv_head, j0, keys, s.HS, w.dv.data());
    }
    for (int h = first; h < end; h++) store(a.dq, b, h, 0, s.Tq, s.HS, dq_of(h));
}

}   // namespace host::attention
