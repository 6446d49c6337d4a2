#include "llmc/parallel/compression/grad_compression.h"

#include <algorithm>

#include "llmc/mesh/shard.h"

int steps_before_compression(const GradCompressionOptions& options, int steps) {
    if (options.start != GradCompressionOptions::from_default) return options.start;
    return options.how == GradCompression::powersgd ? steps / 10 : 0;
}

bool compresses_between_groups(const MeshShape& mesh) { return group_size(mesh, replica_axes) > 1; }

int compressed_sums(const MeshShape& mesh) {
    return group_size(mesh, compresses_between_groups(mesh) ? replica_axes : zero_axes);
}

bool is_compressed(const TensorSpec& tensor, const MeshShape& mesh, const GradCompressionOptions& options) {
    const bool on_two_stages = tensor.tied && mesh.pp > 1;
    const bool on_all_tp = mesh.tp > 1 && is_whole_on_tp(tensor, mesh);
    const bool copied_heads =
        std::any_of(tensor.heads.begin(), tensor.heads.end(), [&](std::int64_t heads) { return heads < mesh.tp; });
    if (on_two_stages || on_all_tp || copied_heads) return false;
    if (options.how != GradCompression::powersgd) return true;
    if (tensor.cols == 1) return false;   // a vector
    const LowRank matrices = low_rank_of(tensor, mesh, options.rank);
    const std::int64_t of_factors = matrices.of_left() + matrices.of_right();
    return static_cast<double>(matrices.elements()) > options.min_compression_rate * static_cast<double>(of_factors);
}

LowRank low_rank_of(const TensorSpec& tensor, const MeshShape& mesh, int rank) {
    const TensorSpec held = held_part_of(tensor, mesh);
    const bool experts = held.cut == TensorCut::experts && !held.blocks.empty();
    const auto count = experts ? static_cast<std::int64_t>(held.blocks.size()) : std::int64_t{1};
    return {count, held.rows / count, held.cols, rank};
}

TensorSpec right_factor_of(const TensorSpec& tensor, const MeshShape& mesh, int rank) {
    const bool by_columns = tensor.cut == TensorCut::row_parallel;
    const std::int64_t rows = low_rank_of(tensor, mesh, rank).count * rank;
    if (by_columns || mesh.tp == 1) {
        return {.rows = rows, .cols = tensor.cols, .cut = by_columns ? TensorCut::row_parallel : TensorCut::none};
    }
    return {.rows = rows * mesh.tp, .cols = tensor.cols, .cut = TensorCut::column_parallel};
}
