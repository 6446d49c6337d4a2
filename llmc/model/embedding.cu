#include "llmc/model/embedding.h"

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/rows/embedding.cuh"

void Embedding::forward(floatX* out, const Batch& batch) const {
    const RankSizes& sizes = tools_.sizes;
    const bool all_rows = sizes.residual_rows() == sizes.rows();
    // rows are summed over tp ranks, so rank 0 alone adds positions
    const floatX* const wpe = parameters_.storage().place().at.tp == 0 ? wpe_ : nullptr;
    const EmbeddingForward<floatX> args{.out = all_rows ? out : tools_.workspace.embedded,
                                        .tokens = batch.tokens,
                                        .wte = wte_,
                                        .wpe = wpe,
                                        .B = sizes.B,
                                        .T = sizes.T,
                                        .C = sizes.C,
                                        .V = sizes.Vp,
                                        .first_token = sizes.first_token,
                                        .positions = tools_.attention.positions(batch)};
    embedding_forward(args, tools_.stream);
    for (int i = 0; i < tools_.tp.summed_chunks(); i++) tools_.tp.begin_sum(args.out, out, i);
    const floatX* const sums = tools_.tp.wait_for_sums(args.out, out);
    ENSURE(sums == out, "the embedding's output is in another place than it was to go to");
}

void Embedding::backward(const floatX* dout, const Batch& batch, Gradients& gradients,
                         WeightGradientQueue& queue) const {
    const RankSizes& sizes = tools_.sizes;
    const GradientTarget dwte = gradients.next(parameters_.index("wte.weight"));
    const GradientTarget dwpe = wpe_ ? gradients.next(wpe_index_) : GradientTarget{{nullptr, gradients.type()}};
    const floatX* const dout_rows = tools_.tp.gather_gradient(dout, queue);
    const TokenGroupsView& positions = batch.documents.position_groups;
    const bool grouped = positions.order != nullptr && wpe_ != nullptr;
    const auto max_positions = static_cast<int>(sizes.model.max_seq_len);
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        G *const wte = dwte.data.as<G>(), *const wpe = dwpe.data.as<G>();
        if (!dwte.accumulate) fill(wte, std::int64_t{sizes.Vp} * sizes.C, 0.0f, tools_.stream);
        embedding_backward(EmbeddingBackward<floatX, G>{.dwte = wte,
                                                        .dwpe = grouped ? nullptr : wpe,
                                                        .dout = dout_rows,
                                                        .groups = batch.groups,
                                                        .B = sizes.B,
                                                        .T = sizes.T,
                                                        .C = sizes.C,
                                                        .V = sizes.Vp,
                                                        .max_positions = max_positions,
                                                        .accumulate_wpe = dwpe.accumulate,
                                                        .first_token = sizes.first_token,
                                                        .positions = tools_.attention.positions(batch)},
                           tools_.stream);
        if (!grouped) return;
        if (!dwpe.accumulate) fill(wpe, std::int64_t{max_positions} * sizes.C, 0.0f, tools_.stream);
        embedding_backward(EmbeddingBackward<floatX, G>{.dwte = wpe,
                                                        .dwpe = nullptr,
                                                        .dout = dout_rows,
                                                        .groups = positions,
                                                        .B = sizes.B,
                                                        .T = sizes.T,
                                                        .C = sizes.C,
                                                        .V = max_positions,
                                                        .max_positions = max_positions,
                                                        .accumulate_wpe = true},
                           tools_.stream);
    });
}

void Embedding::cached(floatX* out, const int* tokens, int position, int rows) const {
    embedding_forward(EmbeddingForward<floatX>{.out = out,
                                               .tokens = tokens,
                                               .wte = wte_,
                                               .wpe = wpe_,
                                               .B = 1,
                                               .T = rows,
                                               .C = tools_.sizes.C,
                                               .V = tools_.sizes.Vp,
                                               .positions = {.first = position}},
                      tools_.stream);
}
