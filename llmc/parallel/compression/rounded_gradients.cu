#include "llmc/parallel/compression/rounded_gradients.h"

#include "llmc/kernels/optim/gradient_blocks.cuh"

namespace {

// Returns the shards of what a rank sends of a tensor. ZeRO's are equal; those of a shard between groups need not be.
ShardBlocks shards_of(std::int64_t elements, std::int64_t ranks, bool between) {
    return between ? shards_of_blocks(ranks, elements) : equal_shards(ranks, elements / ranks);
}

// Calls use.operator()<Block>() with the type of blocks.
template <class Use>
void with_block(GradCompression how, Use&& use) {
    switch (how) {
        case GradCompression::bf16_: use.template operator()<Bf16Block>(); break;
        case GradCompression::int8: use.template operator()<Int8Block>(); break;
        default: ENSURE(false, "gradients that are not rounded, in blocks");
    }
}

}   // namespace

RoundedGradients::RoundedGradients(GradCompression how, const StateBuffers& gradients, const ModelState<float>& error,
                                   Communicator& ranks, Arena& arena)
    : CompressedGradients(gradients, error, ranks), how_(how) {
    const std::int64_t N = ranks.size();
    units_ =
        parts_of_units([&](const TensorLayout& tensor) { return shards_of(elements(tensor), N, between_groups_); });
    with_block(how, [&]<class Block> {
        const std::size_t words = static_cast<std::size_t>(N * largest_unit(units_)) * words_of_block<Block>();
        sent_ = arena.allocate<std::int32_t>("compressed gradients/sent", words);
        received_ = arena.allocate<std::int32_t>("compressed gradients/received", words);
    });
}

void RoundedGradients::reduce(int slot, cudaStream_t stream) {
    const std::vector<Part<ShardBlocks>>& parts = units_[static_cast<std::size_t>(slot)];
    if (parts.empty()) return;
    with_block(how_, [&]<class Block> { reduce_blocks<Block>(parts, stream); });
}

template <class Block>
void RoundedGradients::reduce_blocks(const std::vector<Part<ShardBlocks>>& parts, cudaStream_t stream) {
    Block* const sent = reinterpret_cast<Block*>(sent_.data());
    const Block* const received = reinterpret_cast<const Block*>(received_.data());
    const std::int64_t blocks = parts.front().shards.stride;
    const std::size_t words = static_cast<std::size_t>(blocks) * words_of_block<Block>();
    for (const Part<ShardBlocks>& part : parts) {
        compress_gradients(sent + part.first, part.shards, error(part.param), gradient(part.param), stream);
    }
    ranks_.all_to_all(received_.data(), sent_.data(), words, stream);
    if (sums_to_shards()) {
        for (const Part<ShardBlocks>& part : parts) {
            sum_blocks(gradients_.owned(part.param).as<float>(), received + part.first, part.shards, stream);
        }
        return;
    }
    for (const Part<ShardBlocks>& part : parts) {
        round_sum(sent + ranks_.rank() * blocks + part.first, received + part.first, part.shards, ranks_.rank(),
                  error(part.param), stream);
    }
    ranks_.all_gather(sent_.data(), sent_.data() + static_cast<std::size_t>(ranks_.rank()) * words, words, stream);
    for (const Part<ShardBlocks>& part : parts) {
        expand_blocks(gradient(part.param), sent + part.first, part.shards, stream);
    }
}

double rounded_bytes(GradCompression how, std::int64_t elements, std::int64_t ranks, bool between) {
    double bytes = 0;
    with_block(how, [&]<class Block> {
        bytes = static_cast<double>(ranks * shards_of(elements, ranks, between).of_shard()) * sizeof(Block);
    });
    return bytes;
}
