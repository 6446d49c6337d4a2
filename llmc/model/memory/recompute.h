// Levels of recompute: which activations forward drops, and backward computes again (Chen et al., "Training deep nets
// with sublinear memory cost", 2016).
#pragma once

#include <cstdint>

// Each level drops what the ones before it drop, and more.
enum class Recompute : std::uint8_t {
    none,
    gelu,        // GELU's output: 4C of the 16C elements per row and layer
    gelu_norm,   // both norms' outputs too, from the kept inputs and statistics
    block,       // everything of a block but its input
};
// Marks a tensor that no level drops.
inline constexpr Recompute never_dropped{0xff};
