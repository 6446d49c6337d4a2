// Backward of the pieces of the GPT; gpt.h says what each of them does.
#include "llmc/kernels/classifier.cuh"
#include "llmc/kernels/encoder.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/layernorm.cuh"
#include "llmc/model/gpt.h"

template <class G>
void Gpt::head_forward_backward(const ModelState<G>& gradients, const Batch& batch, float dloss, bool accumulate,
                                Activations& activations) {
    final_layernorm(activations);
    floatX* logits = workspace_->logits.data();
    floatX* dlnf = workspace_->rows_c.data();
    for (int row = 0; row < rows(); row += classifier_rows_) {
        const MatmulShape shape{chunk_rows(row), Vp_, C_};
        const std::int64_t offset = std::int64_t{row} * C_;
        logits_forward(logits, activations, row, shape.M);
        fused_classifier(Classifier<floatX>{logits, activations.losses + row, batch.targets + row, shape.M, V_, Vp_,
                                            dloss, ClassifierOutput::loss_and_gradient},
                         stream_);
        const floatX* dlogits = logits;
        matmul_.input_gradient<floatX>(dlnf + offset, dlogits, unsharded_.tensor(table().classifier()), shape, false,
                                       stream_);
        matmul_.weight_gradient<floatX, G>(gradients.tensor(table().classifier()), dlogits, activations.lnf + offset,
                                           shape, accumulate || row > 0, stream_);
    }
    LayerNormBackward<floatX, G> norm{};
    norm.din = activations.dresidual;
    norm.dweight = gradients.tensor(Param::lnfw);
    norm.dbias = gradients.tensor(Param::lnfb);
    norm.scratch = workspace_->layernorm.data();
    norm.dout = dlnf;
    norm.in = activations.residual(static_cast<int>(config_.layers));
    norm.weight = unsharded_.tensor(Param::lnfw);
    norm.mean = activations.lnf_mean;
    norm.rstd = activations.lnf_rstd;
    norm.rows = rows();
    norm.C = C_;
    norm.accumulate_input = false;
    norm.accumulate_parameters = accumulate;
    layernorm_backward(norm, stream_);
}

// Computes again what this recompute level has not kept of a block.
void Gpt::recompute_block(int layer, Activations& activations) {
    const Recompute level = activations.recompute();
    if (level == Recompute::block) return block_activations(layer, activations);

    const BlockTensors<floatX> w = unsharded_.block(layer);
    const BlockActivations& a = activations.block(layer);
    if (level >= Recompute::gelu) gelu_forward<floatX>(a.fch_gelu, a.fch, std::int64_t{rows()} * 4 * C_, stream_);
    if (level >= Recompute::gelu_norm) {
        const floatX* input = activations.residual(layer);
        layernorm_forward(LayerNormForward<floatX>{a.ln1, nullptr, nullptr, input, w.ln1w, w.ln1b, rows(), C_},
                          stream_);
        layernorm_forward(LayerNormForward<floatX>{a.ln2, nullptr, nullptr, a.residual2, w.ln2w, w.ln2b, rows(), C_},
                          stream_);
    }
}

template <class G>
void Gpt::mlp_backward(const BlockTensors<floatX>& w, const BlockTensors<G>& dw, const BlockActivations& a,
                       bool accumulate, floatX* dresidual) {
    floatX* dfch = workspace_->rows_4c.data();
    floatX* dln2 = workspace_->rows_c.data();
    const MatmulShape down = linear(C_, 4 * C_), up = linear(4 * C_, C_);

    matmul_.bias_gradient<floatX, G>(dw.fcprojb, dresidual, down, accumulate, stream_);
    matmul_.weight_gradient<floatX, G>(dw.fcprojw, dresidual, a.fch_gelu, down, accumulate, stream_);
    if (options_.gelu_fusion >= 2) {
        matmul_.input_gradient_gelu<floatX>(dfch, dresidual, w.fcprojw, a.fch, down, stream_);
    } else {
        matmul_.input_gradient<floatX>(dfch, dresidual, w.fcprojw, down, false, stream_);
        gelu_backward<floatX>(dfch, dfch, a.fch, std::int64_t{rows()} * 4 * C_, stream_);
    }

    matmul_.bias_gradient<floatX, G>(dw.fcb, dfch, up, accumulate, stream_);
    matmul_.weight_gradient<floatX, G>(dw.fcw, dfch, a.ln2, up, accumulate, stream_);
    matmul_.input_gradient<floatX>(dln2, dfch, w.fcw, up, false, stream_);

    layernorm_backward(
        LayerNormBackward<floatX, G>{dresidual, dw.ln2w, dw.ln2b, workspace_->layernorm.data(), dln2, a.residual2,
                                     w.ln2w, a.ln2_mean, a.ln2_rstd, rows(), C_, true, accumulate},
        stream_);
}

template <class G>
void Gpt::attention_backward(const BlockTensors<floatX>& w, const BlockTensors<G>& dw, const BlockActivations& a,
                             const floatX* input, bool accumulate, floatX* dresidual) {
    const floatX* dqkv = workspace_->rows_3c.data();
    floatX* drows = workspace_->rows_c.data();   // gradient of attention's output, then of ln1's
    const MatmulShape projection = linear(C_, C_), packed = linear(3 * C_, C_);

    matmul_.bias_gradient<floatX, G>(dw.attprojb, dresidual, projection, accumulate, stream_);
    matmul_.weight_gradient<floatX, G>(dw.attprojw, dresidual, a.atty, projection, accumulate, stream_);
    matmul_.input_gradient<floatX>(drows, dresidual, w.attprojw, projection, false, stream_);

    attention_->backward(attention_backward_of(a), stream_);

    matmul_.bias_gradient<floatX, G>(dw.qkvb, dqkv, packed, accumulate, stream_);
    matmul_.weight_gradient<floatX, G>(dw.qkvw, dqkv, a.ln1, packed, accumulate, stream_);
    matmul_.input_gradient<floatX>(drows, dqkv, w.qkvw, packed, false, stream_);

    layernorm_backward(
        LayerNormBackward<floatX, G>{dresidual, dw.ln1w, dw.ln1b, workspace_->layernorm.data(), drows, input, w.ln1w,
                                     a.ln1_mean, a.ln1_rstd, rows(), C_, true, accumulate},
        stream_);
}

template <class G>
void Gpt::block_backward(int layer, const ModelState<G>& gradients, bool accumulate, Activations& activations) {
    recompute_block(layer, activations);
    const BlockTensors<floatX> w = unsharded_.block(layer);
    const BlockTensors<G> dw = gradients.block(layer);
    const BlockActivations& a = activations.block(layer);
    mlp_backward(w, dw, a, accumulate, activations.dresidual);
    attention_backward(w, dw, a, activations.residual(layer), accumulate, activations.dresidual);
}

template <class G>
void Gpt::embedding_backward(const ModelState<G>& gradients, const Batch& batch, bool accumulate,
                             Activations& activations) {
    const bool classifier_came_first = config_.tied && storage_->stage().head;
    if (!classifier_came_first && !accumulate)
        fill(gradients.tensor(Param::wte), std::int64_t{Vp_} * C_, 0.0f, stream_);
    EncoderBackward<floatX, G> encoder{};
    encoder.dwte = gradients.tensor(Param::wte);
    encoder.dwpe = gradients.tensor(Param::wpe);
    encoder.dout = activations.dresidual;
    encoder.groups = batch.groups;
    encoder.B = options_.B;
    encoder.T = options_.T;
    encoder.C = C_;
    encoder.V = Vp_;
    encoder.max_positions = static_cast<int>(config_.max_seq_len);
    encoder.accumulate_wpe = accumulate;
    encoder_backward(encoder, stream_);
}

template <class G>
void Gpt::forward_backward(const ModelState<G>& gradients, const Batch& batch, float dloss, bool accumulate) {
    const int layers = static_cast<int>(config_.layers), head = layers + 1;
    begin_pass(training_uses_);
    layers_forward(batch);

    if (config_.tied) gradients_begin(0);   // the classifier writes the embedding's
    gradients_begin(head);
    use([&] { head_forward_backward(gradients, batch, dloss, accumulate, *activations_); });
    gradients_ready(head);
    for (int layer = layers - 1; layer >= 0; layer--) {
        gradients_begin(layer + 1);
        use([&] { block_backward(layer, gradients, accumulate, *activations_); });
        gradients_ready(layer + 1);
    }
    if (!config_.tied) gradients_begin(0);
    embedding_backward(gradients, batch, accumulate, *activations_);
    gradients_ready(0);
}

template void Gpt::forward_backward(const ModelState<float>&, const Batch&, float, bool);
#if defined(PRECISION_BF16)   // gradients are never narrower than what they are gradients of
template void Gpt::forward_backward(const ModelState<bf16>&, const Batch&, float, bool);
#endif
