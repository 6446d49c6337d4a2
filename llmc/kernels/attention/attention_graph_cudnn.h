// The operation graphs by which cuDNN's engines recognise attention (see library_attention_cudnn.cpp).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "llmc/base/dtype.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/graph_cudnn.h"

// Ids of the tensors in memory.
struct AttentionTensor {
    enum Id : std::int64_t { q = 1, k, v, out, lse, scale, hidden, dout, delta, one, dq, dk, dv };
};

// (batch, head, token) strides of a tensor of heads.
using HeadStrides = std::array<std::int64_t, 3>;

// All that a plan depends on.
struct AttentionLayout {
    int B, NH, Tq, Tk, HS;
    bool masked;   // causal, and not so that every query sees every key
    HeadStrides q, k, v, out, dout{}, dq{}, dk{}, dv{};
    auto operator<=>(const AttentionLayout&) const = default;
};

inline bool sees_less_than_all(const AttentionShape& s) { return s.causal && s.k0 + s.Tk - 1 > s.q0; }

template <class T>
HeadStrides strides_of(const HeadsView<T>& view) {
    return {view.batch, view.head, view.token};
}

template <class T, class O>
AttentionLayout layout_of(const AttentionForward<T, O>& a) {
    const AttentionShape& s = a.shape;
    return {s.B,
            s.NH,
            s.Tq,
            s.Tk,
            s.HS,
            sees_less_than_all(s),
            strides_of(a.q),
            strides_of(a.k),
            strides_of(a.v),
            strides_of(a.out)};
}

template <class T, class G>
AttentionLayout layout_of(const AttentionBackward<T, G>& a) {
    const AttentionShape& s = a.shape;
    return {s.B,
            s.NH,
            s.Tq,
            s.Tk,
            s.HS,
            sees_less_than_all(s),
            strides_of(a.q),
            strides_of(a.k),
            strides_of(a.v),
            strides_of(a.out),
            strides_of(a.dout),
            strides_of(a.dq),
            strides_of(a.dk),
            strides_of(a.dv)};
}

// The layout of the program's own tensors in backward: q, k, v and their gradients packed, the others without gaps.
AttentionLayout packed_layout(const AttentionShape& shape);

// Of those, what a forward call has.
AttentionLayout forward_part(AttentionLayout layout);

// Why cuDNN is not to be asked for this shape on a device of this compute capability (90: sm_90); empty where it is.
// Besides what it does not offer, what it is reported to do wrong.
std::string unsupported_by_cudnn(const AttentionShape& shape, bool backward, int compute_capability);

CudnnGraph forward_attention_graph(const AttentionLayout& layout);
CudnnGraph backward_attention_graph(const AttentionLayout& layout);
