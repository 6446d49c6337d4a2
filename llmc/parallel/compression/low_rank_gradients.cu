#include "llmc/parallel/compression/low_rank_gradients.h"

#include <algorithm>

#include "llmc/base/rng.h"
#include "llmc/kernels/optim/low_rank.cuh"
#include "llmc/mesh/shard.h"

LowRankGradients::LowRankGradients(int rank, const StateBuffers& gradients, const CompressionStates& states,
                                   Communicator& ranks, Arena& arena)
    : CompressedGradients(gradients, states.error, ranks), factor_(states.factor) {
    const ParamStorage& storage = gradients.storage();
    std::int64_t partials = 0;
    units_ = parts_of_units([&](const TensorLayout& tensor) {
        const Matrices matrices{low_rank_of(storage.table()[tensor.param].tensor, storage.place().mesh, rank)};
        partials = std::max(partials, right_partials(matrices));
        return matrices;
    });
    left_ = arena.allocate<float>("compressed gradients/left factors", static_cast<std::size_t>(largest_unit(units_)));
    partials_ = arena.allocate<float>("compressed gradients/partial sums", static_cast<std::size_t>(partials));
}

void LowRankGradients::reduce(int slot, cudaStream_t stream) {
    const std::vector<Part<Matrices>>& parts = units_[static_cast<std::size_t>(slot)];
    if (parts.empty()) return;
    const ParamTable& table = gradients_.storage().table();
    std::vector<LeftFactors> left;
    for (const Part<Matrices>& part : parts) {
        float* const right = factor_.tensor(part.param);
        left.push_back({left_.data() + part.first, part.shards.count, part.shards.rows});
        prepare_right(right, part.shards, random_key(name_hash(kGradientFactor), table[part.param].random_tensor()),
                      stream);
        multiply_left(left.back().left, error_.tensor(part.param), gradients_.tensor(part.param).as<float>(), right,
                      part.shards, stream);
    }
    ranks_.all_reduce(left_.data(), static_cast<std::size_t>(parts.front().shards.stride), ReduceOp::sum, stream);
    orthogonalize_left(left, parts.front().shards.rank, stream);
    for (std::size_t i = 0; i < parts.size(); i++) {
        float *const right = factor_.tensor(parts[i].param), *const error = error_.tensor(parts[i].param);
        multiply_right(right, partials_.data(), left[i].left, error, parts[i].shards, stream);
        subtract_products(error, left[i].left, right, parts[i].shards, stream);
    }
    const DeviceBuffer<float> right = factor_.unit(slot);
    ranks_.all_reduce(right.data(), right.size(), ReduceOp::sum, stream);
    const ParamStorage& storage = gradients_.storage();
    for (std::size_t i = 0; i < parts.size(); i++) {
        const TensorLayout& tensor = *storage.find(parts[i].param);
        write_products(gradients_.owned(tensor.param).as<float>(), storage.owned_offset(tensor, StateKind::gradients),
                       storage.padded_elements(tensor, StateKind::optimizer), left[i].left,
                       factor_.tensor(tensor.param), parts[i].shards, stream);
    }
}

double low_rank_bytes(const TensorSpec& tensor, const MeshShape& mesh, int rank) {
    const std::int64_t right = held_part_of(right_factor_of(tensor, mesh, rank), mesh).elements(),
                       padded = zero_cut(right, group_size(mesh, zero_axes)).padded;
    return static_cast<double>(low_rank_of(tensor, mesh, rank).of_left() + padded) * sizeof(float);
}
