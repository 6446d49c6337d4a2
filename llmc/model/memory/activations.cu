#include "llmc/model/memory/activations.h"

#include <algorithm>

#include "llmc/kernels/rows/head_norms.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/shared_rms.cuh"

namespace {

// Makes one set of activations of `layers` layers. Tensors that level `recompute` drops lie in `shared`, which the
// first layer of the first set fills; that set has an empty prefix. (Addresses cannot tell: an arena may only count.)
Activations make_activations(Arena& arena, Buffers& buffers, const std::string& prefix, const RankSizes& sizes,
                             int layers, Recompute recompute, LayerActivations& shared) {
    Activations set;
    for (int layer = 0; layer < layers; layer++) {
        const bool fills_shared = prefix.empty() && layer == 0;
        LayerActivations& a = set.layers.emplace_back(shared);
        a.visit(sizes, [&](const KeptTensor& tensor, void*& address) {
            const bool dropped = recompute >= tensor.dropped_from;
            if (tensor.elements == 0 || (dropped && !fills_shared)) return;
            const std::string where = dropped ? "shared/" : text(prefix, "h.", layer, "/");
            address = buffers.take<std::byte>(arena, "activations/" + where + tensor.name, tensor.bytes());
        });
        if (fills_shared) shared = a;
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
        LayerActivations& a = memory.recomputed.emplace_back();
        a.visit(sizes, [&](const KeptTensor& tensor, void*& address) {
            if (recompute < tensor.dropped_from || tensor.elements == 0) return;
            const std::string name = text("activations/", prefix, "h.", layer, "/", tensor.name);
            address = buffers.take<std::byte>(arena, name, tensor.bytes());
        });
    }
    if (norm_bytes > 0) {
        const std::int64_t of_layer = 2 * norm_elements(sizes.model) * norm_bytes;
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

LayerActivations moved(LayerActivations a, LayerActivations places, const RankSizes& sizes) {
    std::vector<void*> addresses;
    places.visit(sizes, [&](const KeptTensor&, void*& address) { addresses.push_back(address); });
    std::size_t i = 0;
    a.visit(sizes, [&](const KeptTensor&, void*& address) {
        if (addresses[i] != nullptr) address = addresses[i];
        i++;
    });
    return a;
}

ActivationPool::ActivationPool(Arena& arena, const RankSizes& sizes, int layers, Recompute recompute,
                               const InFlight& in_flight, std::int64_t norm_bytes) {
    LayerActivations shared;
    for (int i = 0; i < in_flight.activations; i++) {
        const std::string prefix = i > 0 ? text("set ", i, "/") : "";
        activations.add(make_activations(arena, buffers_, prefix, sizes, layers, recompute, shared));
    }
    auto add_boundaries = [&](Pool<BoundaryTensor>& pool, int count, const char* name) {
        for (int i = 0; i < count; i++) {
            floatX* const data = buffers_.take<floatX>(arena, text("activations/", name, i > 0 ? text(" ", i) : ""),
                                                       std::int64_t{sizes.residual_rows()} * sizes.C);
            pool.add({data, {}});
        }
    };
    add_boundaries(inputs, in_flight.inputs, "input");
    add_boundaries(gradients, in_flight.gradients, "dresidual");
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
    floatX* const rows = buffers_.take<floatX>(arena, "workspace/rows",
                                               std::int64_t{sizes.rows()} * std::max(sizes.C, sizes.NH * sizes.HS));
    branch_out = dnormed = datty = embedded = rows;
    layer.visit(sizes, [&](const ScratchTensor& tensor, void*& address) {
        if (tensor.elements == 0 || (!tensor.forward_too && !backward)) return;
        address = buffers_.take<std::byte>(arena, text("workspace/", tensor.name), tensor.bytes());
    });
    if (!backward) return;
    std::size_t sums = layernorm_backward_scratch(static_cast<int>(Rr), sizes.C);
    if (sizes.model.qk_norm == QkNorm::head) {
        sums = std::max(sums, head_norms_scratch(sizes.rows(), sizes.HS));
    }
    if (sizes.model.qk_norm == QkNorm::row) {
        sums = std::max(sums, shared_rms_scratch(sizes.rows(), sizes.NH * sizes.HS));
    }
    norm_sums = arena.allocate<float>("workspace/layernorm", sums);
}
