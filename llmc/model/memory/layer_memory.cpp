#include "llmc/model/memory/layer_memory.h"

#include <algorithm>

namespace {

// Visits a norm's output and statistics. If norms come after sublayers, their outputs are not kept.
void visit_norm(NormOutput& norm, const RankSizes& sizes, const KeptVisitor& visitor, const char* const (&names)[3]) {
    const std::int64_t Rr = sizes.residual_rows(), elements = sizes.model.norm_after() ? 0 : sizes.residual_elements();
    visitor(norm.out, {.name = names[0], .elements = elements, .dropped_from = Recompute::gelu_norm});
    visitor(norm.mean, {.name = names[1], .elements = sizes.model.norm == NormKind::layer ? Rr : 0, .statistic = true});
    visitor(norm.rstd, {.name = names[2], .elements = Rr, .statistic = true});
}

// Widths of the matrices of a layer that are not C.
struct LayerWidths {
    std::int64_t of_sublayers, of_experts;
    explicit LayerWidths(const RankSizes& sizes) {
        const ModelConfig& model = sizes.model;
        const std::int64_t F = model.experts > 0 ? model.expert_width() : 0, S = model.shared_experts * F;
        const std::int64_t mlp = model.experts > 0 ? model.hidden_width(S) : std::max(sizes.F, sizes.fc_width());
        of_sublayers = std::max<std::int64_t>({sizes.NH * sizes.HS, sizes.qkv_width(), mlp});
        of_experts = std::max(F, model.hidden_width(F));
    }
};

}   // namespace

void AttentionActivations::visit(const RankSizes& sizes, const KeptVisitor& visitor) {
    const std::int64_t R = sizes.rows(), NH = sizes.NH, KV = sizes.KV, HS = sizes.HS;
    const QkNorm kind = sizes.model.qk_norm;
    const std::int64_t normed = kind == QkNorm::none ? 0 : R;
    visitor(q_raw, {.name = "q_raw", .elements = normed * NH * HS});
    visitor(k_raw, {.name = "k_raw", .elements = normed * KV * HS});
    visitor(q_rstd, {.name = "q_rstd", .elements = normed * (kind == QkNorm::row ? 1 : NH), .statistic = true});
    visitor(k_rstd, {.name = "k_rstd", .elements = normed * (kind == QkNorm::row ? 1 : KV), .statistic = true});
    visitor(qkv, {.name = "qkv", .elements = R * sizes.attended_width()});
    visitor(lse, {.name = "lse", .elements = R * NH, .statistic = true});
    visitor(attended, {.name = "attended", .elements = sizes.ulysses > 1 ? R * NH * HS : 0});
    visitor(atty, {.name = "atty", .elements = R * NH * HS});
}

void MlpActivations::visit(const RankSizes& sizes, const KeptVisitor& visitor) {
    const std::int64_t R = sizes.rows();
    visitor(fch, {.name = "fch", .elements = R * sizes.fc_width(), .reusable = true});
    visitor(fch_act, {.name = "fch_act", .elements = R * sizes.F, .dropped_from = Recompute::gelu, .reusable = true});
}

void ExpertsActivations::visit(const RankSizes& sizes, const KeptVisitor& visitor) {
    const ModelConfig& model = sizes.model;
    const bool dealt = sizes.ep > 1;
    const std::int64_t Rr = sizes.residual_rows(), C = sizes.C, E = model.experts, F = model.expert_width(),
                       K = model.experts_per_token(), M = sizes.most_expert_rows(), S = model.shared_experts * F;
    // has room for later micro-batches of shorter, and so more, sequences
    const std::int64_t all_counts = model.aux_loss > 0 ? sizes.rows() * E : 0;
    visitor(logits, {.name = "router_logits", .elements = Rr * E, .statistic = true});
    visitor(index, {.name = "expert_index", .elements = Rr * K, .dropped_from = never_dropped, .statistic = true});
    visitor(counts,
            {.name = "expert_counts", .elements = all_counts, .dropped_from = never_dropped, .statistic = true});
    visitor(weight, {.name = "expert_weight", .elements = Rr * K, .statistic = true});
    visitor(offsets, {.name = "expert_offsets", .elements = E + 1, .statistic = true});
    visitor(source, {.name = "expert_source", .elements = Rr * K, .statistic = true});
    visitor(row, {.name = "expert_row", .elements = Rr * K, .statistic = true});
    visitor(held_offsets, {.name = "held_offsets", .elements = dealt ? 2 * E / sizes.ep : 0, .statistic = true});
    visitor(held_weight,
            {.name = "held_weight", .elements = dealt ? M : 0, .dropped_from = never_dropped, .statistic = true});
    // rows that have travelled are sent again only under Recompute::block
    visitor(in, {.name = "expert_in", .elements = dealt ? M * C : 0});
    visitor(hidden, {.name = "expert_fch", .elements = M * model.hidden_width(F)});
    visitor(activated, {.name = "expert_act", .elements = M * F, .dropped_from = Recompute::gelu});
    visitor(shared_hidden, {.name = "shared_fch", .elements = Rr * model.hidden_width(S)});
    visitor(shared_activated, {.name = "shared_act", .elements = Rr * S, .dropped_from = Recompute::gelu});
}

void LayerActivations::visit(const RankSizes& sizes, const KeptVisitor& visitor) {
    const std::int64_t elements = sizes.residual_elements(), projected = sizes.model.norm_after() ? elements : 0;
    visit_norm(ln_1, sizes, visitor, {"ln1", "ln1_mean", "ln1_rstd"});
    attention.visit(sizes, visitor);
    visitor(attproj, {.name = "attproj", .elements = projected});
    visitor(residual2, {.name = "residual2", .elements = elements});
    visit_norm(ln_2, sizes, visitor, {"ln2", "ln2_mean", "ln2_rstd"});
    sizes.model.experts > 0 ? experts.visit(sizes, visitor) : mlp.visit(sizes, visitor);
    visitor(fcproj, {.name = "fcproj", .elements = projected});
}

std::vector<KeptTensor> layer_kept(const RankSizes& sizes) {
    std::vector<KeptTensor> all;
    LayerActivations none;
    none.visit(sizes, [&](const KeptTensor& tensor, void*&) { all.push_back(tensor); });
    return all;
}

ReusableMemory reusable_memory(LayerActivations a, const RankSizes& sizes) {
    ReusableMemory memory;
    a.visit(sizes, [&](const KeptTensor& tensor, void*& address) {
        if (!tensor.reusable) return;
        memory.emplace_back(static_cast<std::byte*>(address), static_cast<std::size_t>(tensor.bytes()));
    });
    return memory;
}

std::vector<std::size_t> reusable_bytes(const RankSizes& sizes) {
    std::vector<std::size_t> bytes;
    for (const KeptTensor& tensor : layer_kept(sizes)) {
        if (tensor.reusable) bytes.push_back(static_cast<std::size_t>(tensor.bytes()));
    }
    return bytes;
}

void AttentionScratch::visit(const RankSizes& sizes, const ScratchVisitor& visitor) {
    const std::int64_t R = sizes.rows();
    const bool sums = sizes.model.qk_norm == QkNorm::row;
    visitor(dqkv, {.name = "dqkv", .elements = R * sizes.attended_width(), .forward_too = true});
    visitor(delta, {.name = "attention_delta", .elements = R * sizes.NH, .forward_too = true});
    visitor(row_sums, {.name = "row_sums", .elements = sums ? 2 * R : 0, .forward_too = true});
}

void MlpScratch::visit(const RankSizes& sizes, const ScratchVisitor& visitor) {
    const std::int64_t R = sizes.rows();
    visitor(dfch, {.name = "dfch", .elements = R * sizes.fc_width()});
    visitor(dfch_act, {.name = "dfch_act", .elements = sizes.model.gated() ? R * sizes.F : 0});
}

void ExpertsScratch::visit(const RankSizes& sizes, const ScratchVisitor& visitor) {
    const bool dealt = sizes.ep > 1;
    const std::int64_t Rr = sizes.residual_rows(), assignments = Rr * sizes.model.experts_per_token(),
                       M = sizes.most_expert_rows(), F = sizes.model.expert_width(), S = sizes.model.shared_experts * F;
    visitor(out, {.name = "expert_rows", .elements = M * sizes.C, .forward_too = true});
    visitor(dactivated, {.name = "expert_dact", .elements = std::max(M * F, Rr * S)});
    visitor(dweight, {.name = "expert_dweight", .elements = assignments});
    visitor(losses, {.name = "router_losses", .elements = 2 * Rr});
    visitor(all_offsets, {.name = "all_offsets", .elements = sizes.model.experts + 1, .forward_too = true});
    visitor(own_rows, {.name = "own_rows", .elements = dealt ? assignments * sizes.C : 0, .forward_too = true});
    visitor(own_values, {.name = "own_values", .elements = dealt ? assignments : 0, .forward_too = true});
    visitor(held_dweight, {.name = "held_dweight", .elements = dealt ? M : 0});
    visitor(counts,
            {.name = "expert_counts", .elements = dealt ? sizes.ep * sizes.model.experts : 0, .forward_too = true});
    dout = din = out, shared_dactivated = dactivated;
}

std::int64_t Fp8Scratch::most_rows(const RankSizes& sizes) {
    if (!sizes.fp8) return 0;
    const LayerWidths widths(sizes);
    const std::int64_t C = sizes.C, all = sizes.rows() * std::max(C, widths.of_sublayers);
    return sizes.model.experts == 0 ? all : std::max(all, sizes.most_expert_rows() * std::max(C, widths.of_experts));
}

std::int64_t Fp8Scratch::most_weights(const RankSizes& sizes) {
    if (!sizes.fp8) return 0;
    const LayerWidths widths(sizes);
    return sizes.C * std::max(widths.of_sublayers, sizes.model.experts / sizes.ep * widths.of_experts);
}

void Fp8Scratch::visit(const RankSizes& sizes, const ScratchVisitor& visitor) {
    visitor(rows, {.name = "fp8_rows", .elements = most_rows(sizes), .forward_too = true});
    visitor(weights, {.name = "fp8_weights", .elements = most_weights(sizes), .forward_too = true});
}

void LayerScratch::visit(const RankSizes& sizes, const ScratchVisitor& visitor) {
    fp8.visit(sizes, visitor);
    attention.visit(sizes, visitor);
    sizes.model.experts > 0 ? experts.visit(sizes, visitor) : mlp.visit(sizes, visitor);
}
