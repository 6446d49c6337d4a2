// How gradients travel in the sum over data-parallel ranks, and which.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llmc/mesh/tensor_spec.h"

// none: as they are. In blocks of 256 elements (llmc/kernels/optim/rounded_blocks.cuh): bf16, 2 bytes an element; int8,
// 1 byte and a scale of 4 bytes a block. topk: the largest elements alone, 8 bytes each
// (llmc/kernels/optim/topk_entries.cuh).
enum class GradCompression : std::uint8_t { none, bf16_, int8, topk };

struct GradCompressionOptions {
    GradCompression how = GradCompression::none;
    float topk = 0.01f;   // fraction of the elements that travels, above 0 and at most 1
};

// Name of the state that keeps what compression has left out of a data-parallel rank's gradients.
inline constexpr const char* kGradientError = "gradient_error";

// Returns true if a tensor's gradient travels compressed: if one rank alone, of those that have seen the same tokens,
// computes each of its elements. Others (under tp norms and copied heads, under pp a tied embedding) are summed over
// these ranks too, and would leave out different parts on each.
inline bool is_compressed(const TensorSpec& tensor, const MeshShape& mesh) {
    const bool on_two_stages = tensor.tied && mesh.pp > 1;
    const bool on_all_tp = mesh.tp > 1 && is_whole_on_tp(tensor, mesh);
    const bool copied_heads =
        std::any_of(tensor.heads.begin(), tensor.heads.end(), [&](std::int64_t heads) { return heads < mesh.tp; });
    return !on_two_stages && !on_all_tp && !copied_heads;
}
