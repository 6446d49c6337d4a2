#include "llmc/optim/compressed_average.h"

#include <algorithm>

#include "llmc/kernels/optim/delta_blocks.cuh"
#include "llmc/kernels/optim/topk_entries.cuh"

namespace {

// Returns the blocks of a tensor that each of `replicas` averages: as many for each, so the last ones may be padding.
std::int64_t blocks_of_one(std::int64_t elements, std::int64_t replicas) {
    return (rounded_blocks(elements) + replicas - 1) / replicas;
}

constexpr std::int64_t kEntryWords = sizeof(TopkEntry) / sizeof(std::int32_t);

}   // namespace

CompressedAverage::CompressedAverage(const LocalSteps& local, int replicas,
                                     const std::vector<std::vector<std::int64_t>>& units, Arena& arena)
    : local_(local), replicas_(replicas) {
    std::int64_t most = 0;
    for (const std::vector<std::int64_t>& unit : units) {
        std::int64_t words = 0;
        for (const std::int64_t elements : unit) words += words_of(elements);
        most = std::max(most, words);
    }
    words_ = arena.allocate<std::int32_t>("local steps/blocks", static_cast<std::size_t>(most));
}

// Returns the words that a tensor takes, sent and received.
std::int64_t CompressedAverage::words_of(std::int64_t elements) const {
    const std::int64_t R = replicas_, blocks = 2 * R * blocks_of_one(elements, R);
    switch (local_.compression) {
        case OuterCompression::none: break;
        case OuterCompression::int8: return blocks * static_cast<std::int64_t>(words_of_block<Int8Block>());
        case OuterCompression::int2_: return blocks * static_cast<std::int64_t>(words_of_block<Int2Block>());
        case OuterCompression::topk: return (R + 1) * topk_chunks(1, elements, local_.topk).of_shard() * kEntryWords;
    }
    return 0;
}

void CompressedAverage::average(const std::vector<AveragedTensor>& unit, Communicator& outer,
                                cudaStream_t stream) const {
    switch (local_.compression) {
        case OuterCompression::none: ENSURE(false, "weights that travel as they are");
        case OuterCompression::int8: return average_blocks<Int8Block>(unit, outer, stream);
        case OuterCompression::int2_: return average_blocks<Int2Block>(unit, outer, stream);
        case OuterCompression::topk: return average_largest(unit, outer, stream);
    }
}

// Each replica averages one share of every tensor for all.
template <class Block>
void CompressedAverage::average_blocks(const std::vector<AveragedTensor>& unit, Communicator& outer,
                                       cudaStream_t stream) const {
    struct Part {
        AveragedTensor tensor;
        std::int64_t share;   // blocks that each replica averages
        Block *blocks, *received;
        // Returns the words of a share.
        std::size_t words() const { return static_cast<std::size_t>(share) * words_of_block<Block>(); }
    };
    auto words = [](Block* blocks) { return reinterpret_cast<std::int32_t*>(blocks); };
    const int R = outer.size();
    std::vector<Part> parts;
    auto* next = reinterpret_cast<Block*>(words_.data());
    for (const AveragedTensor& tensor : unit) {
        const std::int64_t share = blocks_of_one(tensor.padded, R);
        parts.push_back({tensor, share, next, next + R * share});
        next += 2 * R * share;
    }
    for (const Part& part : parts) {
        const AveragedTensor& t = part.tensor;
        compress_deltas(part.blocks, R * part.share, t.error, t.weights, t.begin, t.count, stream);
    }
    {
        const Communicator::Group together(outer);
        for (const Part& part : parts) {
            outer.all_to_all(words(part.received), words(part.blocks), part.words(), stream);
        }
    }
    for (const Part& part : parts) {
        const AveragedTensor& t = part.tensor;
        const std::int64_t first = outer.rank() * part.share, before = std::min(first * kRoundedBlock, t.count),
                           elements = std::min(part.share * kRoundedBlock, t.count - before);
        average_deltas(part.blocks + first, part.received, part.share, R, t.error + before, elements, stream);
    }
    {
        const Communicator::Group together(outer);
        for (const Part& part : parts) {
            outer.all_gather(words(part.blocks), words(part.blocks + outer.rank() * part.share), part.words(), stream);
        }
    }
    for (const Part& part : parts) {
        apply_deltas(part.tensor.weights, part.tensor.begin, part.blocks, part.tensor.count, stream);
    }
}

void CompressedAverage::average_largest(const std::vector<AveragedTensor>& unit, Communicator& outer,
                                        cudaStream_t stream) const {
    struct Part {
        AveragedTensor tensor;
        TopkChunks chunks;
        TopkEntry *sent, *received;
    };
    std::vector<Part> parts;
    auto* next = reinterpret_cast<TopkEntry*>(words_.data());
    for (const AveragedTensor& tensor : unit) {
        const TopkChunks chunks = topk_chunks(1, tensor.count, local_.topk);
        parts.push_back({tensor, chunks, next, next + chunks.of_shard()});
        next += (outer.size() + 1) * chunks.of_shard();
    }
    for (const Part& part : parts) {
        const AveragedTensor& t = part.tensor;
        pick_largest_deltas(part.sent, part.chunks, t.error, t.weights, t.begin, local_.momentum, stream);
    }
    {
        const Communicator::Group together(outer);
        for (const Part& part : parts) {
            outer.all_gather(reinterpret_cast<std::int32_t*>(part.received),
                             reinterpret_cast<const std::int32_t*>(part.sent),
                             static_cast<std::size_t>(part.chunks.of_shard() * kEntryWords), stream);
        }
    }
    for (const Part& part : parts) {
        add_mean_delta(part.tensor.weights, part.tensor.begin, part.received, outer.size(), part.chunks, stream);
    }
}
