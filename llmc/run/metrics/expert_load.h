// How evenly a step's tokens went to the experts of a mixture, and what its router's losses were.
#pragma once

#include <cstdint>
#include <span>

struct ExpertLoad {
    // Of the layer where it is worst. Tokens of an expert, relative to the mean of its layer; and the entropy of their
    // shares, relative to that of an even load: 0 to 1.
    double fullest = 1, emptiest = 1, entropy = 1;
    double balance_loss = 0, z_loss = 0;   // with their factors, sums over layers
};

// `counts`, (layers, experts): tokens that each expert got.
ExpertLoad expert_load(std::span<const std::int32_t> counts, std::size_t experts);
