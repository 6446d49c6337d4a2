#include "llmc/mesh/shard.h"

namespace {

constexpr std::int64_t ceil_to(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t qkv_blocks = 3;

std::int64_t divided(std::int64_t n, int parts, const char* what) {
    ENSURE(n % parts == 0, n, " ", what, " cannot be cut into ", parts, " equal tp shards");
    return n / parts;
}

// Appends a range, joined with the one before when they continue each other on both sides.
void append(std::vector<OwnedRange>& ranges, const OwnedRange& next) {
    if (next.length == 0) return;
    if (!ranges.empty()) {
        OwnedRange& last = ranges.back();
        if (last.global_begin + last.length == next.global_begin &&
            last.local_begin + last.length == next.local_begin) {
            last.length += next.length;
            return;
        }
    }
    ranges.push_back(next);
}

// The inverse of tp_shard_ranges for one element.
ElementHome tp_shard_home(const GlobalTensor& tensor, int tp, std::int64_t element) {
    const std::int64_t row = element / tensor.cols, col = element % tensor.cols;
    const GlobalTensor tp_shard = tp_shard_of(tensor, tp);
    ElementHome home;
    switch (tensor.cut) {
        case TensorCut::none: home.local = element; break;
        case TensorCut::rows:
        case TensorCut::vocabulary:
            home.tp_rank = static_cast<int>(row / tp_shard.rows);
            home.local = row % tp_shard.rows * tp_shard.cols + col;
            break;
        case TensorCut::columns:
            home.tp_rank = static_cast<int>(col / tp_shard.cols);
            home.local = row * tp_shard.cols + col % tp_shard.cols;
            break;
        case TensorCut::qkv_heads: {
            const std::int64_t block_rows = tensor.rows / qkv_blocks, shard_block = tp_shard.rows / qkv_blocks;
            const std::int64_t block = row / block_rows, row_in_block = row % block_rows;
            home.tp_rank = static_cast<int>(row_in_block / shard_block);
            home.local = (block * shard_block + row_in_block % shard_block) * tp_shard.cols + col;
            break;
        }
    }
    return home;
}

}   // namespace

GlobalTensor tp_shard_of(const GlobalTensor& tensor, int tp) {
    GlobalTensor tp_shard = tensor;
    switch (tensor.cut) {
        case TensorCut::none: break;
        case TensorCut::rows: tp_shard.rows = divided(tensor.rows, tp, "rows"); break;
        case TensorCut::columns: tp_shard.cols = divided(tensor.cols, tp, "columns"); break;
        case TensorCut::qkv_heads:
            tp_shard.rows = qkv_blocks * divided(tensor.rows / qkv_blocks, tp, "rows of q");
            break;
        case TensorCut::vocabulary:
            tp_shard.rows = tp == 1 ? tensor.rows : ceil_to((tensor.rows + tp - 1) / tp, vocabulary_shard_rows);
            break;
    }
    return tp_shard;
}

std::vector<OwnedRange> tp_shard_ranges(const GlobalTensor& tensor, int tp, int tp_rank) {
    ENSURE(tp_rank >= 0 && tp_rank < tp, "tp rank ", tp_rank, " of ", tp);
    const GlobalTensor tp_shard = tp_shard_of(tensor, tp);
    std::vector<OwnedRange> ranges;
    switch (tensor.cut) {
        case TensorCut::none: append(ranges, {0, 0, tensor.elements()}); break;
        case TensorCut::rows:
        case TensorCut::vocabulary: {
            const std::int64_t begin = std::min(tp_rank * tp_shard.rows, tensor.rows);
            const std::int64_t end = std::min(begin + tp_shard.rows, tensor.rows);
            append(ranges, {begin * tensor.cols, 0, (end - begin) * tensor.cols});
            break;
        }
        case TensorCut::columns:
            for (std::int64_t row = 0; row < tensor.rows; row++) {
                append(ranges, {row * tensor.cols + tp_rank * tp_shard.cols, row * tp_shard.cols, tp_shard.cols});
            }
            break;
        case TensorCut::qkv_heads: {
            const std::int64_t block_rows = tensor.rows / qkv_blocks, shard_block = tp_shard.rows / qkv_blocks;
            for (std::int64_t block = 0; block < qkv_blocks; block++) {
                append(ranges, {(block * block_rows + tp_rank * shard_block) * tensor.cols,
                                block * shard_block * tensor.cols, shard_block * tensor.cols});
            }
            break;
        }
    }
    return ranges;
}

ZeroCut zero_cut(std::int64_t tp_shard_elements, int zero_ranks) {
    const std::int64_t shard = ceil_to((tp_shard_elements + zero_ranks - 1) / zero_ranks, shard_alignment);
    return {shard, shard * zero_ranks};
}

std::int64_t stored_elements(const GlobalTensor& tensor, const ShardPlace& place, StateKind state) {
    const ZeroCut cut = zero_cut(tp_shard_of(tensor, place.mesh.tp).elements(), group_size(place.mesh, zero_axes));
    return is_sharded(state, place.zero_stage) ? cut.shard : cut.padded;
}

std::vector<OwnedRange> owned_ranges(const GlobalTensor& tensor, const ShardPlace& place, StateKind state) {
    std::vector<OwnedRange> tp_shard = tp_shard_ranges(tensor, place.mesh.tp, place.at.tp);
    if (!is_sharded(state, place.zero_stage)) return tp_shard;

    const ZeroCut cut = zero_cut(tp_shard_of(tensor, place.mesh.tp).elements(), group_size(place.mesh, zero_axes));
    const std::int64_t begin = group_rank(place.mesh, place.at, zero_axes) * cut.shard, end = begin + cut.shard;
    std::vector<OwnedRange> owned;
    for (const OwnedRange& range : tp_shard) {
        const std::int64_t first = std::max(range.local_begin, begin);
        const std::int64_t last = std::min(range.local_begin + range.length, end);
        if (first < last) append(owned, {range.global_begin + first - range.local_begin, first - begin, last - first});
    }
    return owned;
}

std::vector<OwnedRange> sole_ranges(const GlobalTensor& tensor, bool tied, const ShardPlace& place) {
    if (tensor.cut == TensorCut::none && place.at.tp != 0) return {};
    if (tied && place.at.pp != 0) return {};
    return owned_ranges(tensor, {place.mesh, place.at, 1}, StateKind::optimizer);
}

ElementHome home_of(const GlobalTensor& tensor, const ShardPlace& place, StateKind state, std::int64_t global_element) {
    ENSURE(global_element >= 0 && global_element < tensor.elements(), "element ", global_element, " of ",
           tensor.elements());
    ElementHome home = tp_shard_home(tensor, place.mesh.tp, global_element);
    if (is_sharded(state, place.zero_stage)) {
        const ZeroCut cut = zero_cut(tp_shard_of(tensor, place.mesh.tp).elements(), group_size(place.mesh, zero_axes));
        home.zero_rank = static_cast<int>(home.local / cut.shard);
        home.local %= cut.shard;
    }
    return home;
}

std::vector<LayerRange> balance_layers(std::int64_t layers, int parts, double embedding_cost, double classifier_cost) {
    ENSURE(parts >= 1 && layers >= parts, layers, " layers over ", parts, " pipeline parts");
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts), 1);
    std::vector<double> costs(static_cast<std::size_t>(parts), 1.0);
    costs.front() += embedding_cost;
    costs.back() += classifier_cost;
    for (std::int64_t left = layers - parts; left > 0; left--) {
        const auto cheapest = std::min_element(costs.begin(), costs.end()) - costs.begin();   // the first of several
        sizes[static_cast<std::size_t>(cheapest)]++;
        costs[static_cast<std::size_t>(cheapest)] += 1.0;
    }
    std::vector<LayerRange> ranges;
    std::int64_t begin = 0;
    for (std::int64_t size : sizes) {
        ranges.push_back({begin, begin + size});
        begin += size;
    }
    return ranges;
}
