#include "llmc/model/head.h"

#include <algorithm>

#include "llmc/kernels/rows/classifier.cuh"

int default_classifier_rows(int rows, std::int64_t padded_vocab_size) {
    const std::int64_t bytes = std::int64_t{9} << 28;   // 64 x 1024 tokens of GPT-2 are three slices in bf16
    const int multiple = 128;
    const auto fit = static_cast<int>(bytes / (padded_vocab_size * static_cast<std::int64_t>(sizeof(floatX))));
    const int most = std::max(fit / multiple * multiple, multiple), slices = ceil_div(rows, most);
    return std::min(rows, ceil_div(ceil_div(rows, slices), multiple) * multiple);
}

Head::Head(const StageTools& tools, const ModelState<floatX>& parameters, int slice_rows)
    : tools_(tools),
      vocabulary_is_whole_(parameters.storage().place().mesh.tp == 1),
      slice_rows_(slice_rows),
      norm_(tools, parameters, "ln_f"),
      classifier_(tools, parameters, parameters.storage().table().classifier(), -1) {}

template <class PerSlice>
void Head::for_slices(PerSlice&& per_slice) const {
    const int rows = tools_.sizes.rows();
    for (int first = 0; first < rows; first += slice_rows_) per_slice(first, std::min(slice_rows_, rows - first));
}

NormOutput Head::normed() const {
    const Workspace& w = tools_.workspace;
    return {w.lnf.data(), w.lnf_mean.data(), w.lnf_rstd.data()};
}

void Head::final_norm(const floatX* in) const { norm_.forward(normed(), in); }

void Head::logits(floatX* out, int first_row, int count) const {
    const floatX* const lnf = tools_.tp.gather(tools_.workspace.lnf.data());
    const floatX* const rows = lnf + std::int64_t{first_row} * tools_.sizes.C;
    if (vocabulary_is_whole_) return classifier_.forward(out, rows, count);
    ENSURE(count <= slice_rows_, count, " rows of logits, room for ", slice_rows_);
    floatX* const shard = tools_.workspace.logits.data();
    classifier_.forward(shard, rows, count);
    tools_.vocabulary.gather_logits(out, shard, count);
}

void Head::slice_loss(const Batch& batch, int first, int count, float dloss, bool gradient) const {
    const Workspace& w = tools_.workspace;
    tools_.vocabulary.loss(Classifier<floatX>{
        w.logits.data(), w.losses.data() + first, batch.targets + first, count, tools_.sizes.V, tools_.sizes.Vp, dloss,
        gradient ? ClassifierOutput::loss_and_gradient : ClassifierOutput::loss,
        gradient ? tools_.choices.z_loss : 0.0f, gradient || margins_ == nullptr ? nullptr : margins_ + first});
}

void Head::loss(const floatX* in, const Batch& batch) const {
    final_norm(in);
    const floatX* const lnf = tools_.tp.gather(tools_.workspace.lnf.data());
    for_slices([&](int first, int count) {
        classifier_.forward(tools_.workspace.logits.data(), lnf + std::int64_t{first} * tools_.sizes.C, count);
        slice_loss(batch, first, count, 0.0f, false);
    });
}

void Head::loss_and_backward(floatX* dresidual, const floatX* in, const Batch& batch, float dloss,
                             Gradients& gradients) const {
    TpRegion& tp = tools_.tp;
    const Workspace& workspace = tools_.workspace;
    final_norm(in);
    const floatX* const lnf = tp.gather(workspace.lnf.data());
    floatX* const logits = workspace.logits.data();
    floatX* const dlnf = workspace.dnormed;
    for_slices([&](int first, int count) {
        const std::int64_t offset = std::int64_t{first} * tools_.sizes.C;
        classifier_.forward(logits, lnf + offset, count);
        slice_loss(batch, first, count, dloss, true);
        classifier_.backward_input(dlnf + offset, logits, count);
        classifier_.backward_weight(gradients, logits, lnf + offset, count);
    });
    WeightGradientQueue nothing;   // logits are gone: the classifier's gradients have been made above
    norm_.backward(
        {.din = dresidual, .dout = tp.sum_gradient(dlnf, nothing), .in = in, .kept = normed(), .add_to_din = false},
        gradients, nothing);
}
