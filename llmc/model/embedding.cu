#include "llmc/model/embedding.h"

#include "llmc/kernels/encoder.cuh"
#include "llmc/kernels/init.cuh"

Positions CutPoints::positions() const { return {}; }

void Embedding::forward(floatX* out, const Batch& batch) const {
    const RankSizes& sizes = tools_.sizes;
    const bool all_rows = sizes.residual_rows() == sizes.rows();
    EncoderForward<floatX> encoder{};
    encoder.out = all_rows ? out : tools_.workspace.rows_c.data();
    encoder.tokens = batch.tokens;
    encoder.wte = parameters_.tensor(Param::wte);
    // of the ranks whose rows are summed one adds positions
    encoder.wpe = parameters_.storage().place().at.tp == 0 ? parameters_.tensor(Param::wpe) : nullptr;
    encoder.B = sizes.B;
    encoder.T = sizes.T;
    encoder.C = sizes.C;
    encoder.V = sizes.Vp;
    encoder.first_token = sizes.first_token;
    encoder.positions = tools_.cut_points.positions();
    // all rows at once, whatever part is asked for first
    auto work = [&](Rows rows) {
        if (rows.first == 0) encoder_forward(encoder, tools_.stream);
    };
    const floatX* const left = tools_.cut_points.leave_rows(encoder.out, out, sizes.rows(), work, tools_.stream);
    ENSURE(left == out, "the embedding's output has left to another place than it was to");
}

template <class G>
void Embedding::backward(const floatX* dout, const Batch& batch, Gradients<G>& gradients,
                         WeightGradientQueue& queue) const {
    const RankSizes& sizes = tools_.sizes;
    const auto dwte = gradients.next(Param::wte), dwpe = gradients.next(Param::wpe);
    if (!dwte.accumulate) fill(dwte.data, std::int64_t{sizes.Vp} * sizes.C, 0.0f, tools_.stream);
    EncoderBackward<floatX, G> encoder{};
    encoder.dwte = dwte.data;
    encoder.dwpe = dwpe.data;
    encoder.dout = tools_.cut_points.leave_rows_backward(dout, queue, tools_.stream);
    encoder.groups = batch.groups;
    encoder.B = sizes.B;
    encoder.T = sizes.T;
    encoder.C = sizes.C;
    encoder.V = sizes.Vp;
    encoder.first_token = sizes.first_token;
    encoder.positions = tools_.cut_points.positions();
    encoder.max_positions = static_cast<int>(parameters_.storage().table().config().max_seq_len);
    encoder.accumulate_wpe = dwpe.accumulate;
    encoder_backward(encoder, tools_.stream);
}

template void Embedding::backward(const floatX*, const Batch&, Gradients<float>&, WeightGradientQueue&) const;
#if defined(PRECISION_BF16)
template void Embedding::backward(const floatX*, const Batch&, Gradients<bf16>&, WeightGradientQueue&) const;
#endif
