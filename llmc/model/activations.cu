#include "llmc/model/activations.h"

#include <algorithm>
#include <numeric>

#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/shared_rms.cuh"
#include "llmc/model/sublayer.h"

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
    sizes.KV = static_cast<int>(config.kv_heads()) * config.kv_copies(mesh.tp) / mesh.tp;
    sizes.HS = static_cast<int>(config.head_size());
    sizes.F = static_cast<int>(config.mlp_width()) / mesh.tp;
    sizes.V = static_cast<int>(std::clamp<std::int64_t>(config.vocab_size - first, 0, Vp));
    sizes.Vp = static_cast<int>(Vp);
    sizes.first_token = static_cast<int>(first);
    sizes.residual_parts = sequence_parallel ? mesh.tp : 1;
    sizes.whole_T = T;
    sizes.ulysses = ulysses;
    sizes.ep = mesh.ep;
    sizes.model = config;
    return sizes;
}

int sequence_unit(int cp, int residual_parts) { return std::lcm(cp * residual_parts, cp > 1 ? 2 * cp : 1); }

void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T) {
    const int tp = mesh.tp, cp = mesh.cp;
    const std::int64_t mlp = config.experts > 0 ? 0 : config.mlp_width();   // experts are not cut
    auto require = [&](bool holds, std::int64_t count, const char* what) {
        auto works = [&](std::int64_t ranks) { return config.shares_heads(ranks) && mlp % ranks == 0; };
        if (holds) return;
        std::int64_t below = tp, above = tp;
        while (!works(below)) below--;
        while (above <= config.heads && !works(above)) above++;
        throw Error(ErrorKind::usage, text("--tp ", tp, ": ranks cannot share the model's ", count, what, " evenly"),
                    above > config.heads ? text("The nearest value that works is ", below, ".")
                                         : text("The nearest values that work are ", below, " and ", above, "."));
    };
    require(config.heads % tp == 0, config.heads, " heads");
    require(config.shares_heads(tp), config.kv_heads(), " heads of keys and values");
    require(mlp % tp == 0, mlp, " channels inside the MLP");
    if (!sequence_parallel) return;
    // T must also be enough for a single sequence (sampling)
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

std::vector<KeptTensor> layer_kept(const RankSizes& sizes) {
    std::vector<KeptTensor> all;
    const std::vector<SublayerKind> kinds = sizes.model.sublayers();
    for (std::size_t i = 0; i < kinds.size(); i++) {
        if (i > 0) all.push_back({.name = "residual2", .elements = std::int64_t{sizes.residual_rows()} * sizes.C});
        for (const KeptTensor& tensor : type_of(kinds[i]).kept(sizes)) all.push_back(tensor);
    }
    return all;
}

std::vector<std::size_t> lent_to_attention(const RankSizes& sizes) {
    std::vector<std::size_t> bytes;
    const std::vector<SublayerKind> kinds = sizes.model.sublayers();
    for (std::size_t i = kinds.size(); i-- > 0 && kinds[i] != SublayerKind::attention;) {
        for (const KeptTensor& tensor : type_of(kinds[i]).kept(sizes)) {
            if (tensor.lent) bytes.push_back(static_cast<std::size_t>(tensor.bytes()));
        }
    }
    return bytes;
}

namespace {

// Makes one set of activations of `layers` layers. Tensors that level `recompute` drops lie in `shared`, which the
// first layer of the first set fills; that set has an empty prefix. (Addresses cannot tell: an arena may only count.)
Activations make_activations(Arena& arena, Buffers& buffers, const std::string& prefix, const RankSizes& sizes,
                             int layers, Recompute recompute, LayerActivations& shared) {
    Activations set;
    const std::vector<KeptTensor> kept = layer_kept(sizes);
    shared.resize(kept.size());
    for (int layer = 0; layer < layers; layer++) {
        LayerActivations& places = set.layers.emplace_back(kept.size());
        for (std::size_t i = 0; i < kept.size(); i++) {
            if (kept[i].elements == 0) continue;
            const bool dropped = recompute >= kept[i].dropped_from, fills_shared = prefix.empty() && layer == 0;
            if (!dropped || fills_shared) {
                const std::string where = dropped ? "shared/" : text(prefix, "h.", layer, "/");
                places[i] = buffers.take<std::byte>(arena, "activations/" + where + kept[i].name, kept[i].bytes());
            }
            if (dropped && fills_shared) shared[i] = places[i];
            if (dropped) places[i] = shared[i];
        }
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
    const std::vector<KeptTensor> kept = layer_kept(sizes);
    for (int layer = 0; layer < layers; layer++) {
        LayerActivations& places = memory.recomputed.emplace_back(kept.size());
        for (std::size_t i = 0; i < kept.size(); i++) {
            if (recompute < kept[i].dropped_from || kept[i].elements == 0) continue;
            const std::string name = text("activations/", prefix, "h.", layer, "/", kept[i].name);
            places[i] = buffers.take<std::byte>(arena, name, kept[i].bytes());
        }
    }
    if (norm_bytes > 0) {
        const auto sublayers = static_cast<std::int64_t>(sizes.model.sublayers().size());
        const std::int64_t of_layer = sublayers * norm_elements(sizes.model) * norm_bytes;
        std::byte* const all =
            buffers.take<std::byte>(arena, text("activations/", prefix, "layernorms"), layers * of_layer);
        for (int layer = 0; layer < layers; layer++) memory.norms.push_back(all + layer * of_layer);
    }
    return memory;
}

}   // namespace

std::int64_t activation_set_bytes(const RankSizes& sizes, int layers, Recompute recompute) {
    std::int64_t of_layer = 0;
    for (const KeptTensor& tensor : layer_kept(sizes)) {
        if (recompute < tensor.dropped_from) of_layer += tensor.bytes();
    }
    const std::int64_t residual =
        std::int64_t{sizes.residual_rows()} * sizes.C * static_cast<std::int64_t>(sizeof(floatX));
    return layers * of_layer + (layers + 1) * residual;
}

LayerActivations moved(LayerActivations a, const LayerActivations& places) {
    for (std::size_t i = 0; i < a.size(); i++) {
        if (places[i] != nullptr) a[i] = places[i];
    }
    return a;
}

ActivationPool::ActivationPool(Arena& arena, const RankSizes& sizes, int layers, Recompute recompute,
                               const InFlight& in_flight, std::int64_t norm_bytes) {
    LayerActivations shared;
    for (int i = 0; i < in_flight.activations; i++) {
        const std::string prefix = i > 0 ? text("set ", i, "/") : "";
        activations.add(make_activations(arena, buffers_, prefix, sizes, layers, recompute, shared));
    }
    auto add_borders = [&](Pool<BoundaryTensor>& pool, int count, const char* name) {
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
    const auto C = static_cast<std::size_t>(sizes.C);
    if (classifier_rows > 0) {
        logits = arena.allocate<floatX>("workspace/logits",
                                        static_cast<std::size_t>(classifier_rows) * static_cast<std::size_t>(sizes.Vp));
        lnf = arena.allocate<floatX>("workspace/lnf", Rr * C);
        if (sizes.model.norm == NormKind::layer) lnf_mean = arena.allocate<float>("workspace/lnf_mean", Rr);
        lnf_rstd = arena.allocate<float>("workspace/lnf_rstd", Rr);
        losses = arena.allocate<float>("workspace/losses", R);
    }
    const auto heads = static_cast<std::size_t>(sizes.NH * sizes.HS);
    rows_c = arena.allocate<floatX>("workspace/rows_c", R * std::max(C, heads));
    for (const SublayerKind kind : sizes.model.sublayers()) {
        for (const ScratchTensor& tensor : type_of(kind).scratch(sizes)) {
            if (tensor.backward_only && !backward) continue;
            const std::size_t element = tensor.fp32 ? sizeof(float) : sizeof(floatX);
            const std::size_t bytes = static_cast<std::size_t>(tensor.elements) * element;
            DeviceBuffer<std::byte>& buffer = scratch_[tensor.name];
            ENSURE(buffer.size() == 0 || buffer.size() == bytes, "two scratch tensors of the name ", tensor.name);
            if (buffer.size() == 0) buffer = arena.allocate<std::byte>(text("workspace/", tensor.name), bytes);
        }
    }
    if (!backward) return;
    std::size_t sums = layernorm_backward_scratch(static_cast<int>(Rr), sizes.C);
    if (sizes.model.qk_norm == QkNorm::head) {
        sums = std::max(sums, layernorm_backward_scratch(sizes.rows() * sizes.NH, sizes.HS));
    }
    if (sizes.model.qk_norm == QkNorm::row) {
        sums = std::max(sums, shared_rms_scratch(sizes.rows(), sizes.NH * sizes.HS));
    }
    norm_sums = arena.allocate<float>("workspace/layernorm", sums);
}
