#include "llmc/model/embedding.h"

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/rows/embedding.cuh"

Positions CutPoints::positions() const { return {}; }

void Embedding::forward(floatX* out, const Batch& batch) const {
    const RankSizes& sizes = tools_.sizes;
    const bool all_rows = sizes.residual_rows() == sizes.rows();
    EmbeddingForward<floatX> args{};
    args.out = all_rows ? out : tools_.workspace.rows_c.data();
    args.tokens = batch.tokens;
    args.wte = parameters_.tensor(Param::wte);
    // of the ranks whose rows are summed one adds positions
    args.wpe = parameters_.storage().place().at.tp == 0 ? parameters_.tensor(Param::wpe) : nullptr;
    args.B = sizes.B;
    args.T = sizes.T;
    args.C = sizes.C;
    args.V = sizes.Vp;
    args.first_token = sizes.first_token;
    args.positions = tools_.cut_points.positions();
    // all rows at once, whatever part is asked for first
    auto work = [&](Rows rows) {
        if (rows.first == 0) embedding_forward(args, tools_.stream);
    };
    const floatX* const left = tools_.cut_points.leave_rows(args.out, out, sizes.rows(), work, tools_.stream);
    ENSURE(left == out, "the embedding's output has left to another place than it was to");
}

template <class G>
void Embedding::backward(const floatX* dout, const Batch& batch, Gradients<G>& gradients,
                         WeightGradientQueue& queue) const {
    const RankSizes& sizes = tools_.sizes;
    const auto dwte = gradients.next(Param::wte), dwpe = gradients.next(Param::wpe);
    if (!dwte.accumulate) fill(dwte.data, std::int64_t{sizes.Vp} * sizes.C, 0.0f, tools_.stream);
    EmbeddingBackward<floatX, G> args{};
    args.dwte = dwte.data;
    args.dwpe = dwpe.data;
    args.dout = tools_.cut_points.leave_rows_backward(dout, queue, tools_.stream);
    args.groups = batch.groups;
    args.B = sizes.B;
    args.T = sizes.T;
    args.C = sizes.C;
    args.V = sizes.Vp;
    args.first_token = sizes.first_token;
    args.positions = tools_.cut_points.positions();
    args.max_positions = static_cast<int>(parameters_.storage().table().config().max_seq_len);
    args.accumulate_wpe = dwpe.accumulate;
    embedding_backward(args, tools_.stream);
}

template void Embedding::backward(const floatX*, const Batch&, Gradients<float>&, WeightGradientQueue&) const;
#if defined(PRECISION_BF16)
template void Embedding::backward(const floatX*, const Batch&, Gradients<bf16>&, WeightGradientQueue&) const;
#endif
