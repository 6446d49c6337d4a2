#include "llmc/model/embedding.h"

#include "llmc/kernels/encoder.cuh"
#include "llmc/kernels/init.cuh"

void Embedding::forward(floatX* out, const Batch& batch) const {
    const RankSizes& sizes = tools_.sizes;
    const bool all_rows = sizes.residual_rows() == sizes.rows();
    EncoderForward<floatX> encoder{};
    encoder.out = all_rows ? out : tools_.workspace.rows_c.data();
    encoder.tokens = batch.tokens;
    encoder.wte = parameters_.tensor(Param::wte);
    encoder.wpe = parameters_.tensor(Param::wpe);
    encoder.B = sizes.B;
    encoder.T = sizes.T;
    encoder.C = sizes.C;
    encoder.V = sizes.Vp;
    encoder_forward(encoder, tools_.stream);
    const floatX* const left = tools_.cut_points.leave_rows(encoder.out, tools_.stream);
    if (left == out) return;
    const std::size_t bytes = sizeof(floatX) * static_cast<std::size_t>(std::int64_t{sizes.residual_rows()} * sizes.C);
    CUDA_CHECK(cudaMemcpyAsync(out, left, bytes, cudaMemcpyDeviceToDevice, tools_.stream));
}

template <class G>
void Embedding::backward(const floatX* dout, const Batch& batch, Gradients<G>& gradients) const {
    const RankSizes& sizes = tools_.sizes;
    const auto dwte = gradients.next(Param::wte), dwpe = gradients.next(Param::wpe);
    if (!dwte.accumulate) fill(dwte.data, std::int64_t{sizes.Vp} * sizes.C, 0.0f, tools_.stream);
    EncoderBackward<floatX, G> encoder{};
    encoder.dwte = dwte.data;
    encoder.dwpe = dwpe.data;
    encoder.dout = tools_.cut_points.leave_rows_backward(dout, tools_.stream);
    encoder.groups = batch.groups;
    encoder.B = sizes.B;
    encoder.T = sizes.T;
    encoder.C = sizes.C;
    encoder.V = sizes.Vp;
    encoder.max_positions = static_cast<int>(parameters_.storage().table().config().max_seq_len);
    encoder.accumulate_wpe = dwpe.accumulate;
    encoder_backward(encoder, tools_.stream);
}

template void Embedding::backward(const floatX*, const Batch&, Gradients<float>&) const;
#if defined(PRECISION_BF16)
template void Embedding::backward(const floatX*, const Batch&, Gradients<bf16>&) const;
#endif
