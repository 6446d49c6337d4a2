// Says by formula what ZeRO (zero.h) holds and sends.
#pragma once

#include <optional>

#include "llmc/model/parameters/param_storage.h"

// Returns true if a unit's gradients are reduced behind the fetch of parameters that follows them, for which the model
// waits first; else as soon as they are ready. `at_once`: as UnitHooks::gradients_ready has it.
inline bool reduces_behind_fetch(int zero_stage, bool at_once) {
    return is_sharded(StateKind::parameters, zero_stage) && !at_once;
}

// Times that a unit's gradients are reduced in a step, and that its parameters are gathered, of which each micro-batch
// has `reads` (forward and backward).
constexpr int zero_reductions(int zero_stage, int micro_batches) {
    return is_sharded(StateKind::gradients, zero_stage) ? micro_batches : 1;
}
constexpr int zero_gathers(int zero_stage, int micro_batches, int reads = 2) {
    if (is_sharded(StateKind::parameters, zero_stage)) return reads * micro_batches;
    return is_sharded(StateKind::optimizer, zero_stage) ? 1 : 0;
}
// Times that bytes travel in a reduction: a sum that all ranks get is reduced and gathered.
constexpr int zero_reduce_passes(int zero_stage) { return is_sharded(StateKind::optimizer, zero_stage) ? 1 : 2; }

// Bytes that a rank holds for the model itself, exactly as its buffers are allocated (padding included): kept states,
// of which ZeRO divides more with each stage, and working memory.
struct ZeroMemory {
    double parameters = 0, gradients = 0, optimizer = 0;        // kept
    double unsharded_parameters = 0, unsharded_gradients = 0;   // whole units in turns, and a shard that arrives
    double total() const { return parameters + gradients + optimizer + unsharded_parameters + unsharded_gradients; }
};
// `optimizer_bytes` per parameter: Optimizer::bytes_per_parameter().
ZeroMemory zero_memory(const ParamStorage& storage, double parameter_bytes, double gradient_bytes,
                       double optimizer_bytes);

// Logical bytes that a rank sends in a step of `micro_batches`, padding included, exactly as Communicator counts.
struct ZeroTraffic {
    double reduce = 0, gather = 0;               // gradients, parameters; in the ZeRO group
    double reduce_to_owner = 0, broadcast = 0;   // likewise, of matrices that have an owner
    double replicas = 0;                         // gradients, between groups
    double total() const { return reduce + gather + reduce_to_owner + broadcast + replicas; }
};
// `axes`: only of what is summed over them (zero_axes, holder_axes).
ZeroTraffic zero_traffic(const ParamStorage& storage, int micro_batches, double parameter_bytes, double gradient_bytes,
                         std::optional<AxisSet> axes = {});
