// Measures how evenly a step's tokens went to the experts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct ExpertLoad {
    // Values of the worst layer. Tokens of one expert, relative to the layer's mean; and the entropy of the experts'
    // shares, relative to that of an even load: 0 to 1.
    double fullest = 1, emptiest = 1, entropy = 1;
    double balance_loss = 0, z_loss = 0;   // times their factors, summed over layers
    // Rows of each layer on the rank whose experts got most, relative to the mean of ranks; empty without --ep. The
    // others wait for it.
    std::vector<double> fullest_rank = {};
    std::optional<double> dropped = {};   // share of all layers' assignments; none without a capacity
};

// `counts`: tokens per expert, (layers, experts).
ExpertLoad expert_load(std::span<const std::int32_t> counts, std::size_t experts);

// Returns ExpertLoad::fullest_rank. `most`: rows of the fullest rank, (layers); `ranks` share the rows of a layer.
// `dropped`: assignments that no rank got, (layers), or empty.
std::vector<double> rank_loads(std::span<const std::int32_t> most, std::span<const std::int32_t> counts,
                               std::span<const std::int32_t> dropped, std::size_t experts, int ranks);

// Returns ExpertLoad::dropped, or none if `dropped` is empty.
std::optional<double> dropped_share(std::span<const std::int32_t> dropped, std::span<const std::int32_t> counts);

// Returns the load for people, the share dropped and the losses that are on: "experts 0.61-1.52, entropy 0.973,
// 1.25% dropped, balance loss 0.0204".
std::string load_text(const ExpertLoad& load);
