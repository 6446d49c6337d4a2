#include "llmc/model/block.h"

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/residual.cuh"

namespace {

template <class T>
T* at_row(T* tensor, Rows rows, int channels) {
    return tensor + std::int64_t{rows.first} * channels;
}

}   // namespace

Block::Block(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      parameters_(parameters),
      layer_(layer),
      qkv_(tools.matmul, parameters, Param::qkvw, Param::qkvb, layer),
      attproj_(tools.matmul, parameters, Param::attprojw, Param::attprojb, layer),
      fc_(tools.matmul, parameters, Param::fcw, Param::fcb, layer),
      fcproj_(tools.matmul, parameters, Param::fcprojw, Param::fcprojb, layer) {}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// Everything of the block that backward may need: all but its output.
void Block::forward_to_gelu(const floatX* in, const BlockActivations& a) const {
    CutPoints& cut = tools_.cut_points;
    const RankSizes& sizes = tools_.sizes;
    const cudaStream_t stream = tools_.stream;
    const int rows = sizes.rows(), residual_rows = sizes.residual_rows();
    layernorm_forward(
        LayerNormForward<floatX>{a.ln1, a.ln1_mean, a.ln1_rstd, in, parameters_.tensor(Param::ln1w, layer_),
                                 parameters_.tensor(Param::ln1b, layer_), residual_rows, sizes.C},
        stream);
    cut.enter_columns(
        a.ln1, rows,
        [&](const floatX* ln1, Rows part) {
            qkv_.forward(at_row(a.qkv, part, qkv_.out_channels()), at_row(ln1, part, sizes.C), part.count, stream);
        },
        stream);
    cut.attend(tools_.attention, attention_forward(a), a.qkv, a.atty, stream);
    const floatX* const ln2w = parameters_.tensor(Param::ln2w, layer_);
    const floatX* const ln2b = parameters_.tensor(Param::ln2b, layer_);
    if (cut.leaves_whole_sums()) {
        add_projection(a.residual2, in, attproj_, a.atty);
        layernorm_forward(
            LayerNormForward<floatX>{a.ln2, a.ln2_mean, a.ln2_rstd, a.residual2, ln2w, ln2b, residual_rows, sizes.C},
            stream);
    } else {
        residual_layernorm_forward(
            ResidualLayerNormForward<floatX>{a.residual2, a.ln2, a.ln2_mean, a.ln2_rstd, in, project(attproj_, a.atty),
                                             ln2w, ln2b, residual_rows, sizes.C},
            stream);
    }
    cut.enter_columns(
        a.ln2, rows,
        [&](const floatX* all, Rows part) {
            const floatX* const ln2 = at_row(all, part, sizes.C);
            floatX* const fch = at_row(a.fch, part, fc_.out_channels());
            floatX* const gelu = at_row(a.fch_gelu, part, fc_.out_channels());
            if (tools_.gelu_fusion >= 1) return fc_.forward_gelu(gelu, fch, ln2, part.count, stream);
            fc_.forward(fch, ln2, part.count, stream);
            gelu_forward<floatX>(gelu, fch, std::int64_t{part.count} * fc_.out_channels(), stream);
        },
        stream);
}

// A projection back into the residual region.
const floatX* Block::project(const Linear& linear, const floatX* in) const {
    floatX* const out = tools_.workspace.rows_c.data();
    auto work = [&](Rows part) {
        linear.forward(at_row(out, part, tools_.sizes.C), at_row(in, part, linear.in_channels()), part.count,
                       tools_.stream);
    };
    return tools_.cut_points.leave_rows(out, nullptr, tools_.sizes.rows(), work, tools_.stream);
}

// The same, and `residual` added by the matmul itself: for whole sums.
void Block::add_projection(floatX* out, const floatX* residual, const Linear& linear, const floatX* in) const {
    auto work = [&](Rows part) {
        linear.forward_add(at_row(out, part, tools_.sizes.C), at_row(residual, part, tools_.sizes.C),
                           at_row(in, part, linear.in_channels()), part.count, tools_.stream);
    };
    tools_.cut_points.leave_rows(out, out, tools_.sizes.rows(), work, tools_.stream);
}

void Block::forward(floatX* out, const floatX* in, const BlockActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    forward_to_gelu(in, a);
    if (tools_.cut_points.leaves_whole_sums()) return add_projection(out, a.residual2, fcproj_, a.fch_gelu);
    residual_forward<floatX>(out, a.residual2, project(fcproj_, a.fch_gelu),
                             std::int64_t{sizes.residual_rows()} * sizes.C, tools_.stream);
}

AttentionForward<floatX> Block::attention_forward(const BlockActivations& a) const {
    const AttentionShape s = tools_.sizes.attention();
    const floatX* qkv = a.qkv;
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS); };
    return {contiguous_heads(a.attended, s.Tq, s.NH, s.HS), a.lse, part(0), part(1), part(2), s};
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Block::recompute(const floatX* in, const BlockActivations& a, Recompute level) const {
    if (level == Recompute::block) return forward_to_gelu(in, a);

    const RankSizes& sizes = tools_.sizes;
    const int residual_rows = sizes.residual_rows();
    if (level >= Recompute::gelu) {
        gelu_forward<floatX>(a.fch_gelu, a.fch, std::int64_t{sizes.rows()} * fc_.out_channels(), tools_.stream);
    }
    if (level >= Recompute::gelu_norm) {
        layernorm_forward(LayerNormForward<floatX>{a.ln1, nullptr, nullptr, in, parameters_.tensor(Param::ln1w, layer_),
                                                   parameters_.tensor(Param::ln1b, layer_), residual_rows, sizes.C},
                          tools_.stream);
        layernorm_forward(
            LayerNormForward<floatX>{a.ln2, nullptr, nullptr, a.residual2, parameters_.tensor(Param::ln2w, layer_),
                                     parameters_.tensor(Param::ln2b, layer_), residual_rows, sizes.C},
            tools_.stream);
    }
}

AttentionBackward<floatX> Block::attention_backward(floatX* dqkv, const BlockActivations& a) const {
    const AttentionShape s = tools_.sizes.attention();
    const floatX *qkv = a.qkv, *out = a.attended, *dout = tools_.workspace.rows_c.data();
    auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS); };
    return {part(dqkv, 0),
            part(dqkv, 1),
            part(dqkv, 2),
            tools_.workspace.delta.data(),
            contiguous_heads(dout, s.Tq, s.NH, s.HS),
            contiguous_heads(out, s.Tq, s.NH, s.HS),
            a.lse,
            part(qkv, 0),
            part(qkv, 1),
            part(qkv, 2),
            s};
}

// dresidual += the gradient of the layernorm's input. `aside` (2, norm_stride): where those of weight and bias wait for
// the queue; null: they have their place already.
template <class G>
void Block::norm_backward(floatX* dresidual, const floatX* dout, const floatX* in, const float* mean, const float* rstd,
                          Param weight, Param bias, G* aside, Gradients<G>& gradients,
                          WeightGradientQueue& queue) const {
    using Target = typename Gradients<G>::Target;
    const int C = tools_.sizes.C;
    G* const aside_bias = aside != nullptr ? aside + norm_stride(C) : nullptr;
    const Target dweight = aside != nullptr ? Target{aside, false} : gradients.next(weight, layer_);
    const Target dbias = aside != nullptr ? Target{aside_bias, false} : gradients.next(bias, layer_);
    layernorm_backward(
        LayerNormBackward<floatX, G>{dresidual, dweight.data, dbias.data, tools_.workspace.layernorm.data(), dout, in,
                                     parameters_.tensor(weight, layer_), mean, rstd, tools_.sizes.residual_rows(), C,
                                     true, dweight.accumulate},
        tools_.stream);
    if (aside == nullptr) return;
    auto take_place = [=, this, &gradients](Param kind, const G* from) {
        const Target to = gradients.next(kind, layer_);
        ENSURE(!to.accumulate, "a layernorm's gradient that is not the first of its micro-batch");
        const std::size_t bytes = sizeof(G) * static_cast<std::size_t>(C);
        CUDA_CHECK(cudaMemcpyAsync(to.data, from, bytes, cudaMemcpyDeviceToDevice, tools_.stream));
    };
    queue.add([=] {
        take_place(weight, aside);
        take_place(bias, aside_bias);
    });
}

template <class G>
void Block::backward(floatX* dresidual, const floatX* in, const BlockActivations& a, const BlockGradients* kept,
                     Gradients<G>& gradients, WeightGradientQueue& queue) const {
    CutPoints& cut = tools_.cut_points;
    const Workspace& workspace = tools_.workspace;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows(), residual_rows = tools_.sizes.residual_rows();
    const bool delayed = kept != nullptr;
    G* const norms = kept != nullptr ? static_cast<G*>(kept->norms) : nullptr;   // ln2's, ln1's
    G* const norms1 = norms != nullptr ? norms + 2 * norm_stride(tools_.sizes.C) : nullptr;
    floatX* const drows = workspace.rows_c.data();
    floatX *const dfch = workspace.rows_4c.data(), *const dqkv = workspace.rows_3c.data();
    // So that what a gradient of weights reads travels behind the matmul before it.
    auto announce = [&](const floatX* entering) {
        if (!delayed) cut.will_enter_columns(entering, stream);
    };
    // Of (count, channels): what a gradient of weights reads. A delayed one reads a copy, because this changes before.
    auto keep = [&](const floatX* gradient, floatX* BlockGradients::*copy, int count, int channels) -> const floatX* {
        if (!delayed) return gradient;
        const std::size_t bytes = sizeof(floatX) * static_cast<std::size_t>(std::int64_t{count} * channels);
        CUDA_CHECK(cudaMemcpyAsync(kept->*copy, gradient, bytes, cudaMemcpyDeviceToDevice, stream));
        return kept->*copy;
    };

    // The gradient of what has left rows. A delayed gradient of weights gathers it again: there is no room for all rows
    // in the place of a residual stream.
    auto output_gradient = [this, delayed, &queue, stream](const floatX* gathered, const floatX* own) {
        return delayed ? tools_.cut_points.leave_rows_backward(own, queue, stream) : gathered;
    };

    const floatX* const dout = cut.leave_rows_backward(dresidual, queue, stream);
    const floatX* const own_dout = keep(dresidual, &BlockGradients::dout, residual_rows, tools_.sizes.C);
    queue.add([=, this, &gradients] {
        fcproj_.backward_weight(gradients, output_gradient(dout, own_dout), a.fch_gelu, rows, stream);
    });
    if (tools_.gelu_fusion >= 2) {
        fcproj_.backward_input_gelu(dfch, dout, a.fch, rows, stream);
    } else {
        fcproj_.backward_input(dfch, dout, rows, stream);
        gelu_backward<floatX>(dfch, dfch, a.fch, std::int64_t{rows} * fc_.out_channels(), stream);
    }
    announce(a.ln2);
    const floatX* const kept_dfch = keep(dfch, &BlockGradients::dfch, rows, fc_.out_channels());
    queue.add([=, this, &gradients] {
        fc_.backward_weight(gradients, kept_dfch, tools_.cut_points.enter_columns(a.ln2, stream), rows, stream);
    });
    fc_.backward_input(drows, dfch, rows, stream);
    norm_backward(dresidual, cut.enter_columns_backward(drows, queue, stream), a.residual2, a.ln2_mean, a.ln2_rstd,
                  Param::ln2w, Param::ln2b, norms, gradients, queue);

    const floatX* const dout2 = cut.leave_rows_backward(dresidual, queue, stream);
    const floatX* const own_dout2 = keep(dresidual, &BlockGradients::dresidual2, residual_rows, tools_.sizes.C);
    queue.add([=, this, &gradients] {
        attproj_.backward_weight(gradients, output_gradient(dout2, own_dout2), a.atty, rows, stream);
    });
    attproj_.backward_input(drows, dout2, rows, stream);
    const SpentActivations spent = delayed ? SpentActivations{} : SpentActivations{a.fch, a.fch_gelu};
    cut.attend_backward(tools_.attention, attention_backward(dqkv, a), dqkv, drows, spent, queue, stream);
    announce(a.ln1);
    const floatX* const kept_dqkv = keep(dqkv, &BlockGradients::dqkv, rows, qkv_.out_channels());
    queue.add([=, this, &gradients] {
        qkv_.backward_weight(gradients, kept_dqkv, tools_.cut_points.enter_columns(a.ln1, stream), rows, stream);
    });
    qkv_.backward_input(drows, dqkv, rows, stream);
    norm_backward(dresidual, cut.enter_columns_backward(drows, queue, stream), in, a.ln1_mean, a.ln1_rstd, Param::ln1w,
                  Param::ln1b, norms1, gradients, queue);
}

template void Block::backward(floatX*, const floatX*, const BlockActivations&, const BlockGradients*, Gradients<float>&,
                              WeightGradientQueue&) const;
#if defined(PRECISION_BF16)   // gradients are never narrower than what they are gradients of
template void Block::backward(floatX*, const floatX*, const BlockActivations&, const BlockGradients*, Gradients<bf16>&,
                              WeightGradientQueue&) const;
#endif
