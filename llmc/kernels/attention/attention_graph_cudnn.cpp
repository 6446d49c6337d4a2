#ifdef USE_CUDNN

#include "llmc/kernels/attention/attention_graph_cudnn.h"

#include "llmc/base/error.h"

namespace {

constexpr cudnnDataType_t fp32 = CUDNN_DATA_FLOAT, half_width = CUDNN_DATA_BFLOAT16;

// The shapes that occur in both graphs.
struct Shapes {
    std::int64_t B, NH, Tq, Tk, HS;
    CudnnTensorShape scores, scores_transposed, row;   // (Tq, Tk), (Tk, Tq) in the same memory order, (Tq, 1)

    explicit Shapes(const AttentionLayout& l) : B(l.B), NH(l.NH), Tq(l.Tq), Tk(l.Tk), HS(l.HS) {
        scores = {{B, NH, Tq, Tk}, {NH * Tq * Tk, Tq * Tk, Tk, 1}};
        scores_transposed = {{B, NH, Tk, Tq}, {NH * Tq * Tk, Tq * Tk, 1, Tk}};
        row = {{B, NH, Tq, 1}, {NH * Tq, Tq, 1, 1}};
    }
    CudnnTensorShape heads(std::int64_t tokens, const HeadStrides& s) const {
        return {{B, NH, tokens, HS}, {s[0], s[1], s[2], 1}};
    }
    CudnnTensorShape heads_transposed(std::int64_t tokens, const HeadStrides& s) const {
        return {{B, NH, HS, tokens}, {s[0], s[1], 1, s[2]}};
    }
};

// Scores that the query does not see become -infinity: row index >= column index keeps them.
CudnnGraph::Tensor masked(CudnnGraph& g, const Shapes& shape, CudnnGraph::Tensor scores) {
    auto rows = g.between(CUDNN_DATA_INT32, shape.scores), columns = g.between(CUDNN_DATA_INT32, shape.scores);
    auto seen = g.between(CUDNN_DATA_BOOLEAN, shape.scores), result = g.between(fp32, shape.scores);
    g.index(rows, scores, 2);
    g.index(columns, scores, 3);
    g.pointwise(CUDNN_POINTWISE_CMP_GE, seen, rows, columns);
    g.pointwise(CUDNN_POINTWISE_BINARY_SELECT, result, scores, g.scalar(AttentionTensor::hidden), seen);
    return result;
}

}   // namespace

AttentionLayout packed_layout(const AttentionShape& s) {
    const std::int64_t row = std::int64_t{s.NH} * s.HS;
    const HeadStrides packed_q{s.Tq * 3 * row, s.HS, 3 * row}, packed_k{s.Tk * 3 * row, s.HS, 3 * row};
    const HeadStrides alone{s.Tq * row, s.HS, row};
    return {s.B,   s.NH,  s.Tq,     s.Tk,     s.HS,    sees_less_than_all(s), packed_q, packed_k, packed_k,
            alone, alone, packed_q, packed_k, packed_k};
}

AttentionLayout forward_part(AttentionLayout layout) {
    layout.dout = layout.dq = layout.dk = layout.dv = {};
    return layout;
}

std::string unsupported_by_cudnn(const AttentionShape& s, bool backward, int compute_capability) {
    if (s.HS % 8 != 0 || s.HS > 128) return text("cuDNN: head size ", s.HS, ", expected a multiple of 8 up to 128");
    const bool masked = sees_less_than_all(s);
    if (masked && s.q0 != s.k0) return "cuDNN: no causal mask between blocks that begin at different positions";
    if (s.B == 1 && s.NH == 1 && (s.Tq == 1 || s.Tk == 1))
        return "cuDNN: it is reported to crash near one token of one head";
    if (backward && !masked && s.Tk % 128 == 64 && compute_capability == 90)
        return text("cuDNN: backward without a mask is reported to give NaN on sm_90 for Tk=", s.Tk,
                    ", a multiple of 64 but not of 128");
    return "";
}

CudnnGraph forward_attention_graph(const AttentionLayout& layout) {
    const Shapes shape(layout);
    CudnnGraph g;
    auto q = g.in_memory(AttentionTensor::q, half_width, shape.heads(layout.Tq, layout.q));
    auto k_transposed = g.in_memory(AttentionTensor::k, half_width, shape.heads_transposed(layout.Tk, layout.k));
    auto v = g.in_memory(AttentionTensor::v, half_width, shape.heads(layout.Tk, layout.v));
    auto out = g.in_memory(AttentionTensor::out, half_width, shape.heads(layout.Tq, layout.out));
    auto lse = g.in_memory(AttentionTensor::lse, fp32, shape.row);

    auto products = g.between(fp32, shape.scores), scores = g.between(fp32, shape.scores);
    g.matmul(products, q, k_transposed);
    g.pointwise(CUDNN_POINTWISE_MUL, scores, products, g.scalar(AttentionTensor::scale));
    if (layout.masked) scores = masked(g, shape, scores);

    auto highest = g.between(fp32, shape.row), sum = g.between(fp32, shape.row), log_sum = g.between(fp32, shape.row);
    auto shifted = g.between(fp32, shape.scores), exponentials = g.between(fp32, shape.scores);
    g.reduce(CUDNN_REDUCE_TENSOR_MAX, highest, scores);
    g.pointwise(CUDNN_POINTWISE_SUB, shifted, scores, highest);
    g.pointwise(CUDNN_POINTWISE_EXP, exponentials, shifted);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, sum, exponentials);
    g.pointwise(CUDNN_POINTWISE_LOG, log_sum, sum);
    g.pointwise(CUDNN_POINTWISE_ADD, lse, highest, log_sum);
    auto probabilities = g.between(half_width, shape.scores);
    g.pointwise(CUDNN_POINTWISE_DIV, probabilities, exponentials, sum);
    g.matmul(out, probabilities, v);
    return g;
}

CudnnGraph backward_attention_graph(const AttentionLayout& layout) {
    const Shapes shape(layout);
    CudnnGraph g;
    auto q = g.in_memory(AttentionTensor::q, half_width, shape.heads(layout.Tq, layout.q));
    auto k_transposed = g.in_memory(AttentionTensor::k, half_width, shape.heads_transposed(layout.Tk, layout.k));
    auto v_transposed = g.in_memory(AttentionTensor::v, half_width, shape.heads_transposed(layout.Tk, layout.v));
    auto out = g.in_memory(AttentionTensor::out, half_width, shape.heads(layout.Tq, layout.out));
    auto dout = g.in_memory(AttentionTensor::dout, half_width, shape.heads(layout.Tq, layout.dout));
    auto dq = g.in_memory(AttentionTensor::dq, half_width, shape.heads(layout.Tq, layout.dq));
    auto dk = g.in_memory(AttentionTensor::dk, half_width, shape.heads(layout.Tk, layout.dk));
    auto dv = g.in_memory(AttentionTensor::dv, half_width, shape.heads(layout.Tk, layout.dv));
    auto lse = g.in_memory(AttentionTensor::lse, fp32, shape.row);
    auto delta = g.in_memory(AttentionTensor::delta, fp32, shape.row);
    auto scale = g.scalar(AttentionTensor::scale);

    const CudnnTensorShape by_token{{shape.B, shape.NH, shape.Tq, shape.HS},
                                    {shape.NH * shape.Tq * shape.HS, shape.Tq * shape.HS, shape.NH * shape.HS, 1}};
    auto products_o = g.between(fp32, by_token);
    auto sums_o = g.between(fp32, shape.row);
    g.pointwise(CUDNN_POINTWISE_MUL, products_o, dout, out);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, sums_o, products_o);
    g.pointwise(CUDNN_POINTWISE_MUL, delta, sums_o, g.scalar(AttentionTensor::one));

    auto products = g.between(fp32, shape.scores), scaled = g.between(fp32, shape.scores),
         shifted = g.between(fp32, shape.scores);
    g.matmul(products, q, k_transposed);
    g.pointwise(CUDNN_POINTWISE_MUL, scaled, products, scale);
    g.pointwise(CUDNN_POINTWISE_SUB, shifted, scaled, lse);
    if (layout.masked) shifted = masked(g, shape, shifted);
    auto p = g.between(fp32, shape.scores), p_transposed = g.between(half_width, shape.scores_transposed);
    g.pointwise(CUDNN_POINTWISE_EXP, p, shifted);
    g.reshape(p_transposed, p);
    g.matmul(dv, p_transposed, dout);

    auto dp = g.between(fp32, shape.scores), centred = g.between(fp32, shape.scores);
    auto weighted = g.between(fp32, shape.scores), ds = g.between(fp32, shape.scores);
    g.matmul(dp, dout, v_transposed);
    g.pointwise(CUDNN_POINTWISE_SUB, centred, dp, delta);
    g.pointwise(CUDNN_POINTWISE_MUL, weighted, centred, p);
    g.pointwise(CUDNN_POINTWISE_MUL, ds, weighted, scale);
    auto ds_transposed = g.between(half_width, shape.scores_transposed);
    g.reshape(ds_transposed, ds);
    g.matmul(dk, ds_transposed, q);
    auto k = g.between(half_width, shape.heads(layout.Tk, layout.k));
    g.reshape(k, k_transposed);
    g.matmul(dq, ds, k);
    return g;
}

#endif   // USE_CUDNN
