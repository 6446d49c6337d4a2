#include "llmc/model/activations.h"

#include <algorithm>
#include <numeric>

#include "llmc/kernels/rows/layernorm.cuh"

RankSizes rank_sizes(const ModelConfig& config, const ShardPlace& place, bool sequence_parallel, int B, int T,
                     int ulysses) {
    const MeshShape& mesh = place.mesh;
    const TensorSpec wte{config.padded_vocab_size, config.channels, TensorCut::vocabulary};
    const std::int64_t Vp = tp_shard_of(wte, mesh.tp).rows, first = place.at.tp * Vp;
    RankSizes sizes{};
    sizes.B = B;
    sizes.T = T / mesh.cp;
    sizes.C = static_cast<int>(config.channels);
    sizes.NH = static_cast<int>(config.heads) / mesh.tp;
    sizes.HS = static_cast<int>(config.head_size());
    sizes.F = 4 * sizes.C / mesh.tp;
    sizes.V = static_cast<int>(std::clamp<std::int64_t>(config.vocab_size - first, 0, Vp));
    sizes.Vp = static_cast<int>(Vp);
    sizes.first_token = static_cast<int>(first);
    sizes.residual_parts = sequence_parallel ? mesh.tp : 1;
    sizes.ulysses = ulysses;
    return sizes;
}

int sequence_unit(int cp, int residual_parts) { return std::lcm(cp * residual_parts, cp > 1 ? 2 * cp : 1); }

void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T) {
    const int tp = mesh.tp, cp = mesh.cp;
    if (config.heads % tp != 0) {
        std::int64_t below = tp, above = tp;
        while (config.heads % below != 0) below--;
        while (above <= config.heads && config.heads % above != 0) above++;
        throw Error(ErrorKind::usage,
                    text("--tp ", tp, ": ranks cannot share the model's ", config.heads, " heads evenly"),
                    above > config.heads ? text("The nearest value that works is ", below, ".")
                                         : text("The nearest values that work are ", below, " and ", above, "."));
    }
    if (!sequence_parallel) return;
    // of a single sequence too, as far as one is needed (sampling)
    const int single = sequence_unit(cp, tp), unit = sequence_unit(cp, tp / std::gcd(B, tp));
    if (T % unit != 0 || T < single) {
        const int least = (single + unit - 1) / unit * unit;
        const int below = T / unit * unit < least ? 0 : T / unit * unit, above = std::max(below + unit, least);
        throw Error(ErrorKind::usage,
                    text("--micro-batch ", B, " x --seq-len ", T, cp > 1 ? text(" / --cp ", cp) : "", ": the ", tp,
                         " ranks of --tp cannot share its rows evenly"),
                    text(below > 0 ? text("The nearest sequence lengths that work are ", below, " and ", above)
                                   : text("The nearest sequence length that works is ", above),
                         "; or give --sequence-parallel 0."));
    }
}

namespace {

// What a block keeps: per_tensor(member, name, elements, the level of recompute that drops it and those above).
template <class PerTensor>
void for_block_tensors(const RankSizes& sizes, PerTensor&& per_tensor) {
    using Block = BlockActivations;
    const std::int64_t R = sizes.rows(), Rr = sizes.residual_rows(), C = sizes.C, F = sizes.F;
    const std::int64_t heads = std::int64_t{sizes.NH} * sizes.HS;
    per_tensor(&Block::ln1, "ln1", Rr * C, Recompute::gelu_norm);
    per_tensor(&Block::ln1_mean, "ln1_mean", Rr, Recompute::block);
    per_tensor(&Block::ln1_rstd, "ln1_rstd", Rr, Recompute::block);
    per_tensor(&Block::qkv, "qkv", R * 3 * heads, Recompute::block);
    per_tensor(&Block::atty, "atty", R * heads, Recompute::block);
    if (sizes.ulysses > 1) per_tensor(&Block::attended, "attended", R * heads, Recompute::block);
    per_tensor(&Block::lse, "lse", R * sizes.NH, Recompute::block);
    per_tensor(&Block::residual2, "residual2", Rr * C, Recompute::block);
    per_tensor(&Block::ln2, "ln2", Rr * C, Recompute::gelu_norm);
    per_tensor(&Block::ln2_mean, "ln2_mean", Rr, Recompute::block);
    per_tensor(&Block::ln2_rstd, "ln2_rstd", Rr, Recompute::block);
    per_tensor(&Block::fch, "fch", R * F, Recompute::block);
    per_tensor(&Block::fch_gelu, "fch_gelu", R * F, Recompute::gelu);
}

// One set of the activations of `layers` layers. What level `recompute` drops is in `shared`, which the first layer of
// the first set, which has no prefix, fills. (Not known by its addresses: an arena may only count.)
Activations make_activations(Arena& arena, Buffers& buffers, const std::string& prefix, const RankSizes& sizes,
                             int layers, Recompute recompute, BlockActivations& shared) {
    Activations set;
    for (int layer = 0; layer < layers; layer++) {
        BlockActivations& block = set.blocks.emplace_back();
        for_block_tensors(sizes, [&]<class T>(T* BlockActivations::*member, const char* name, std::int64_t count,
                                              Recompute dropped_from) {
            const bool dropped = recompute >= dropped_from, fills_shared = prefix.empty() && layer == 0;
            if (!dropped || fills_shared) {
                const std::string where = dropped ? "shared/" : text(prefix, "h.", layer, "/");
                block.*member = buffers.take<T>(arena, "activations/" + where + name, count);
            }
            if (dropped && fills_shared) shared.*member = block.*member;
            if (dropped) block.*member = shared.*member;
        });
        if (sizes.ulysses == 1) block.attended = block.atty;
    }
    for (int layer = 0; layer <= layers; layer++) {
        const std::string name = text("activations/", prefix, "h.", layer, "/residual");
        set.residual.push_back(buffers.take<floatX>(arena, name, std::int64_t{sizes.residual_rows()} * sizes.C));
    }
    return set;
}

DelayedMemory make_delayed(Arena& arena, Buffers& buffers, const std::string& prefix, const RankSizes& sizes,
                           int layers, Recompute recompute, std::int64_t norm_bytes) {
    DelayedMemory memory;
    for (int layer = 0; layer < layers; layer++) {
        BlockActivations& block = memory.recomputed.emplace_back(BlockActivations{});
        for_block_tensors(sizes, [&]<class T>(T* BlockActivations::*member, const char* name, std::int64_t count,
                                              Recompute dropped_from) {
            if (recompute < dropped_from) return;
            block.*member = buffers.take<T>(arena, text("activations/", prefix, "h.", layer, "/", name), count);
        });
    }
    if (norm_bytes > 0) {
        memory.norms = buffers.take<std::byte>(arena, text("activations/", prefix, "layernorms"),
                                               layers * 4 * norm_stride(sizes.C) * norm_bytes);
    }
    return memory;
}

}   // namespace

std::int64_t activation_set_bytes(const RankSizes& sizes, int layers, Recompute recompute) {
    std::int64_t block = 0;
    for_block_tensors(sizes,
                      [&]<class T>(T* BlockActivations::*, const char*, std::int64_t count, Recompute dropped_from) {
                          if (recompute < dropped_from) block += count * static_cast<std::int64_t>(sizeof(T));
                      });
    const std::int64_t residual =
        std::int64_t{sizes.residual_rows()} * sizes.C * static_cast<std::int64_t>(sizeof(floatX));
    return layers * block + (layers + 1) * residual;
}

BlockActivations moved(BlockActivations block, const BlockActivations& places, const RankSizes& sizes) {
    for_block_tensors(sizes, [&]<class T>(T* BlockActivations::*member, const char*, std::int64_t, Recompute) {
        if (places.*member != nullptr) block.*member = places.*member;
    });
    if (sizes.ulysses == 1) block.attended = block.atty;
    return block;
}

ActivationPool::ActivationPool(Arena& arena, const RankSizes& sizes, int layers, Recompute recompute,
                               const InFlight& in_flight, std::int64_t norm_bytes) {
    BlockActivations shared{};
    for (int i = 0; i < in_flight.activations; i++) {
        const std::string prefix = i > 0 ? text("set ", i, "/") : "";
        activations.add(make_activations(arena, buffers_, prefix, sizes, layers, recompute, shared));
    }
    auto add_borders = [&](Pool<Border>& pool, int count, const char* name) {
        for (int i = 0; i < count; i++) {
            floatX* const data = buffers_.take<floatX>(arena, text("activations/", name, i > 0 ? text(" ", i) : ""),
                                                       std::int64_t{sizes.residual_rows()} * sizes.C);
            pool.add({data, {}});
        }
    };
    add_borders(inputs, in_flight.inputs, "input");
    add_borders(gradients, in_flight.gradients, "dresidual");
    for (int i = 0; i < in_flight.delayed; i++) {
        delayed.add(make_delayed(arena, buffers_, text("delayed ", i, "/"), sizes, layers, recompute, norm_bytes));
    }
}

Workspace::Workspace(Arena& arena, const RankSizes& sizes, int classifier_rows, bool backward) {
    const auto R = static_cast<std::size_t>(sizes.rows()), Rr = static_cast<std::size_t>(sizes.residual_rows());
    const auto C = static_cast<std::size_t>(sizes.C), NH = static_cast<std::size_t>(sizes.NH);
    if (classifier_rows > 0) {
        logits = arena.allocate<floatX>("workspace/logits",
                                        static_cast<std::size_t>(classifier_rows) * static_cast<std::size_t>(sizes.Vp));
        lnf = arena.allocate<floatX>("workspace/lnf", Rr * C);
        lnf_mean = arena.allocate<float>("workspace/lnf_mean", Rr);
        lnf_rstd = arena.allocate<float>("workspace/lnf_rstd", Rr);
        losses = arena.allocate<float>("workspace/losses", R);
    }
    rows_c = arena.allocate<floatX>("workspace/rows_c", R * C);
    rows_3c = arena.allocate<floatX>("workspace/rows_3c", R * 3 * NH * static_cast<std::size_t>(sizes.HS));
    delta = arena.allocate<float>("workspace/attention_delta", R * NH);
    if (!backward) return;
    rows_4c = arena.allocate<floatX>("workspace/rows_4c", R * static_cast<std::size_t>(sizes.F));
    layernorm = arena.allocate<float>("workspace/layernorm", layernorm_backward_scratch(static_cast<int>(Rr), sizes.C));
}
