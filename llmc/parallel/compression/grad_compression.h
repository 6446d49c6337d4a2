// How gradients travel in the sum over data-parallel ranks, and which.
#pragma once

#include <cstdint>

#include "llmc/kernels/optim/low_rank.h"
#include "llmc/mesh/tensor_spec.h"

// none: as they are. In blocks of 256 elements (llmc/kernels/optim/rounded_blocks.cuh): bf16, 2 bytes an element; int8,
// 1 byte and a scale of 4 bytes a block. topk: the largest elements alone, 8 bytes each
// (llmc/kernels/optim/topk_entries.cuh). powersgd: matrices as products of two thin ones
// (llmc/kernels/optim/low_rank.cuh).
enum class GradCompression : std::uint8_t { none, bf16_, int8, topk, powersgd };

struct GradCompressionOptions {
    GradCompression how = GradCompression::none;
    float topk = 0.01f;                // fraction of the elements that travels, above 0 and at most 1
    int rank = 4;                      // number of rows of powersgd's factors
    double min_compression_rate = 2;   // powersgd takes matrices with more elements per element of their factors
    int start = from_default;          // see steps_before_compression

    static constexpr int from_default = -1;
};

// Returns how many steps of a run's have gradients that travel as they are, at first. By default powersgd begins after
// a tenth of them, in which gradients change most (Vogels et al. begin at once; later uses wait).
int steps_before_compression(const GradCompressionOptions& options, int steps);

// Returns true if gradients travel compressed between ZeRO's groups alone (--zero-group): within one as they are.
bool compresses_between_groups(const MeshShape& mesh);

// Returns how many sums of gradients meet compressed: one of each data-parallel rank, or between groups one of each.
// Each has an error of its own.
int compressed_sums(const MeshShape& mesh);

// Names of the states that keep what compression has left out of a data-parallel rank's gradients, or a group's, and
// powersgd's right factors.
inline constexpr const char* kGradientError = "gradient_error";
inline constexpr const char* kGradientFactor = "gradient_factor";

// Returns true if a tensor's gradient travels compressed: if one rank alone, of those that have seen the same tokens,
// computes each of its elements, and with powersgd, if it is a matrix with more than min_compression_rate times its
// factors' elements. Others (under tp norms and copied heads, under pp a tied embedding) are summed over these ranks
// too, and would leave out different parts on each.
bool is_compressed(const TensorSpec& tensor, const MeshShape& mesh, const GradCompressionOptions& options);

// Returns the matrices of a rank's part of a tensor for powersgd: each block of experts, other tensors whole.
LowRank low_rank_of(const TensorSpec& tensor, const MeshShape& mesh, int rank);

// Describes the right factors of a tensor as a tensor, for checkpoints. The tp ranks have different ones where tp cuts
// rows, and where it cuts columns each has its own.
TensorSpec right_factor_of(const TensorSpec& tensor, const MeshShape& mesh, int rank);
