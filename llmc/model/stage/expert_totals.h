// Totals of a step's experts, on one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/model/layer/stage_tools.h"
#include "llmc/model/stage/stage_options.h"

// Holds what backwards have added up since begin(); rows of other stages' layers are 0. Empty if the model has no
// experts or the stage no backward.
struct ExpertTotalsMemory {
    DeviceBuffer<std::int32_t> counts;     // (L, E)
    DeviceBuffer<double> router_losses;    // the balance loss, the z-loss
    std::vector<std::int32_t> held_rows;   // (L); empty without --ep
    DeviceBuffer<std::int32_t> dropped;    // (L); empty without a capacity

    ExpertTotalsMemory() = default;
    ExpertTotalsMemory(const ModelConfig& config, const StageOptions& options, Arena& arena) {
        const auto layers = static_cast<std::size_t>(config.layers);
        counts = arena.allocate<std::int32_t>("experts/counts", layers * static_cast<std::size_t>(config.experts));
        router_losses = arena.allocate<double>("experts/router losses", 2);
        if (options.place.mesh.ep > 1) held_rows.resize(layers);
        if (options.capacity_factor > 0) dropped = arena.allocate<std::int32_t>("experts/dropped", layers);
    }

    void begin(cudaStream_t stream) {
        counts.zero(stream);
        router_losses.zero(stream);
        dropped.zero(stream);
        std::ranges::fill(held_rows, 0);
    }
    ExpertTotals addresses() { return {counts.data(), router_losses.data(), held_rows.data(), dropped.data()}; }
};
