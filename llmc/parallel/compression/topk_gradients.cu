#include "llmc/parallel/compression/topk_gradients.h"

#include "llmc/kernels/optim/topk_entries.cuh"

TopkGradients::TopkGradients(float fraction, const StateBuffers& gradients, const ModelState<float>& error,
                             Communicator& ranks, Arena& arena)
    : CompressedGradients(gradients, error, ranks) {
    const std::int64_t shards = sums_to_shards() ? ranks.size() : 1;
    units_ = parts_of_units(
        [&](const TensorLayout& tensor) { return topk_chunks(shards, elements(tensor) / shards, fraction); });
    const std::int64_t most = largest_unit(units_);
    sent_ = arena.allocate<TopkEntry>("compressed gradients/sent", static_cast<std::size_t>(shards * most));
    received_ =
        arena.allocate<TopkEntry>("compressed gradients/received", static_cast<std::size_t>(ranks.size() * most));
}

void TopkGradients::reduce(int slot, cudaStream_t stream) {
    const std::vector<Part<TopkChunks>>& parts = units_[static_cast<std::size_t>(slot)];
    if (parts.empty()) return;
    for (const Part<TopkChunks>& part : parts) {
        pick_largest(sent_.data() + part.first, part.shards, error(part.param), gradient(part.param), stream);
    }
    auto* const received = reinterpret_cast<std::int32_t*>(received_.data());
    const auto* const sent = reinterpret_cast<const std::int32_t*>(sent_.data());
    const std::size_t words = static_cast<std::size_t>(parts.front().shards.stride) * sizeof(TopkEntry) / sizeof *sent;
    if (sums_to_shards()) {
        ranks_.all_to_all(received, sent, words, stream);
    } else {
        ranks_.all_gather(received, sent, words, stream);
    }
    for (const Part<TopkChunks>& part : parts) {
        float* const sum = sums_to_shards() ? gradients_.owned(part.param).as<float>() : gradient(part.param);
        add_entries(sum, received_.data() + part.first, ranks_.size(), part.shards, stream);
    }
}

double topk_bytes(float fraction, std::int64_t elements, std::int64_t shards) {
    const std::int64_t entries = shards * topk_chunks(shards, elements / shards, fraction).of_shard();
    return static_cast<double>(entries) * sizeof(TopkEntry);
}
