#include "llmc/parallel/zero_formulas.h"

#include <algorithm>

ZeroMemory zero_memory(const ParamStorage& storage, double parameter_bytes, double gradient_bytes,
                       double optimizer_bytes) {
    const int stage = storage.place().zero_stage;
    double unsharded = 0, largest_shard = 0;
    int layers = 0;
    for (const UnitLayout& unit : storage.units()) {
        const double padded = static_cast<double>(unit.padded);
        largest_shard = std::max(largest_shard, static_cast<double>(unit.kept));
        if (!storage.table().is_layer(unit.unit) || ++layers <= zero_layer_sets) unsharded += padded;
    }
    auto kept = [&](StateKind state) {
        double sum = 0;
        for (const UnitLayout& unit : storage.units()) sum += static_cast<double>(storage.unit_elements(unit, state));
        return sum;
    };
    ZeroMemory memory;
    memory.parameters = kept(StateKind::parameters) * parameter_bytes;
    memory.gradients = kept(StateKind::gradients) * gradient_bytes;
    memory.optimizer = kept(StateKind::optimizer) * optimizer_bytes;
    if (is_sharded(StateKind::parameters, stage)) memory.unsharded_parameters = unsharded * parameter_bytes;
    if (is_sharded(StateKind::gradients, stage)) {
        memory.unsharded_gradients = (unsharded + largest_shard) * gradient_bytes;
    }
    return memory;
}

ZeroTraffic zero_traffic(const ParamStorage& storage, int micro_batches, double parameter_bytes, double gradient_bytes,
                         std::optional<AxisSet> axes) {
    const MeshShape& mesh = storage.place().mesh;
    const int stage = storage.place().zero_stage;
    ZeroTraffic traffic;
    auto add_span = [&](const UnitLayout& unit, const SpanLayout& span) {
        const int ranks = group_size(mesh, span.zero), rank = group_rank(mesh, storage.place().at, span.zero);
        const double f = static_cast<double>(ranks - 1) / ranks;
        const double copies = span.is_expert_parallel() ? 1 : group_size(mesh, replica_axes);
        double padded = static_cast<double>(span.padded);
        for (int i : span.tensors) {
            const TensorLayout& tensor = storage.tensors()[static_cast<std::size_t>(i)];
            const int owner = storage.table()[tensor.param].tensor.owner;
            if (owner < 0 || stage != 1) continue;
            const double whole = static_cast<double>(tensor.padded);
            padded -= whole;
            if (owner == rank) {
                traffic.broadcast += (ranks - 1) * whole * parameter_bytes;
            } else {
                traffic.reduce_to_owner += whole * gradient_bytes;
            }
        }
        // read by one piece of work only: the head, and an embedding that is not the classifier here
        const bool classifies = storage.table().config().tied && storage.stage().head;
        const bool once =
            unit.unit == storage.table().head_unit() || (unit.unit == storage.table().embedding_unit() && !classifies);
        const double reductions = zero_reduce_passes(stage) * zero_reductions(stage, micro_batches);
        const double gathers = zero_gathers(stage, micro_batches, once ? 1 : 2);
        traffic.reduce += f * padded * gradient_bytes * reductions;
        traffic.gather += f * padded * parameter_bytes * gathers;
        traffic.replicas += 2 * (copies - 1) / copies * static_cast<double>(span.kept) * gradient_bytes;
    };
    for (const UnitLayout& unit : storage.units()) {
        for (const SpanLayout& span : unit.spans) {
            if (!axes || span.zero == *axes) add_span(unit, span);
        }
    }
    return traffic;
}
