#include "llmc/mesh/shard.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace {

constexpr std::int64_t ceil_to(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

std::int64_t divided(std::int64_t n, int parts, const char* what) {
    ENSURE(n % parts == 0, n, " ", what, " cannot be cut into ", parts, " equal tp shards");
    return n / parts;
}

std::vector<std::int64_t> blocks_of(const TensorSpec& tensor) {
    return tensor.blocks.empty() ? std::vector<std::int64_t>{tensor.rows} : tensor.blocks;
}

// Returns the number of different parts into which tp ranks cut a block.
int parts_of(const TensorSpec& tensor, std::size_t block, int tp) {
    if (tensor.heads.empty() || tp <= tensor.heads[block]) return tp;
    const auto heads = static_cast<int>(tensor.heads[block]);
    ENSURE(tp % heads == 0, tp, " tp ranks cannot share ", heads, " heads");
    return heads;
}

// Returns elements [begin, end) of a range; its `local_begin` is 0.
OwnedRange part_of(const OwnedRange& range, std::int64_t begin, std::int64_t end) {
    OwnedRange part{{range.global.element(begin)}, 0, end - begin};
    const std::int64_t length = range.global.length;
    if (length == 0) return part;
    const std::int64_t phase = (range.global.phase + begin) % length;
    if (phase + part.length <= length) return part;   // within one part of a row
    part.global.stride = range.global.stride;
    part.global.length = range.global.length;
    part.global.phase = static_cast<std::uint32_t>(phase);
    return part;
}

}   // namespace

TensorSpec tp_shard_of(const TensorSpec& tensor, int tp) {
    const std::int64_t in_blocks = std::accumulate(tensor.blocks.begin(), tensor.blocks.end(), std::int64_t{0});
    ENSURE(tensor.blocks.empty() || in_blocks == tensor.rows, "blocks of ", in_blocks, " rows in a tensor of ",
           tensor.rows);
    TensorSpec tp_shard = tensor;
    switch (tensor.cut) {
        case TensorCut::none:
        case TensorCut::experts: break;
        case TensorCut::column_parallel:
            tp_shard.rows = 0;
            for (std::size_t i = 0; i < blocks_of(tensor).size(); i++) {
                const int parts = parts_of(tensor, i, tp);
                const std::int64_t rows = divided(blocks_of(tensor)[i], parts, "rows");
                if (!tensor.blocks.empty()) tp_shard.blocks[i] = rows;
                if (!tensor.heads.empty()) tp_shard.heads[i] /= parts;
                tp_shard.rows += rows;
            }
            break;
        case TensorCut::row_parallel: tp_shard.cols = divided(tensor.cols, tp, "columns"); break;
        case TensorCut::vocabulary:
            tp_shard.rows = tp == 1 ? tensor.rows : ceil_to((tensor.rows + tp - 1) / tp, vocabulary_shard_rows);
            break;
    }
    return tp_shard;
}

std::vector<OwnedRange> ranges_within(const std::vector<OwnedRange>& ranges, std::int64_t begin, std::int64_t end) {
    std::vector<OwnedRange> within;
    for (const OwnedRange& range : ranges) {
        const std::int64_t first = std::max(range.local_begin, begin);
        const std::int64_t last = std::min(range.local_begin + range.length, end);
        if (first >= last) continue;
        within.push_back(part_of(range, first - range.local_begin, last - range.local_begin));
        within.back().local_begin = first - begin;
    }
    return within;
}

std::vector<OwnedRange> tp_shard_ranges(const TensorSpec& tensor, int tp, int tp_rank, Heads which) {
    ENSURE(tp_rank >= 0 && tp_rank < tp, "tp rank ", tp_rank, " of ", tp);
    if (which == Heads::copied && (tp == 1 || tensor.heads.empty())) return {};
    if (tp == 1 || tensor.cut == TensorCut::none || tensor.cut == TensorCut::experts) {
        return {{{0}, 0, tensor.elements()}};
    }
    const TensorSpec tp_shard = tp_shard_of(tensor, tp);
    if (tensor.cut == TensorCut::row_parallel) {
        const GlobalSpan span{tp_rank * tp_shard.cols, tensor.cols, static_cast<std::uint32_t>(tp_shard.cols)};
        return {{span, 0, tp_shard.elements()}};
    }
    std::vector<OwnedRange> ranges;
    auto add_rows = [&](std::int64_t first_row, std::int64_t first_in_shard, std::int64_t rows) {
        if (rows > 0) ranges.push_back({{first_row * tensor.cols}, first_in_shard * tensor.cols, rows * tensor.cols});
    };
    if (tensor.cut == TensorCut::vocabulary) {
        const std::int64_t begin = std::min(tp_rank * tp_shard.rows, tensor.rows);
        add_rows(begin, 0, std::min(begin + tp_shard.rows, tensor.rows) - begin);
        return ranges;
    }
    std::int64_t before = 0, before_in_shard = 0;
    for (std::size_t i = 0; i < blocks_of(tensor).size(); i++) {
        const std::int64_t block = blocks_of(tensor)[i],
                           rows = tp_shard.blocks.empty() ? block / tp : tp_shard.blocks[i];
        const int holders = tp / parts_of(tensor, i, tp);
        const bool wanted = which == Heads::all || (which == Heads::copied ? holders > 1 : tp_rank % holders == 0);
        if (wanted) add_rows(before + tp_rank / holders * rows, before_in_shard, rows);
        before += block;
        before_in_shard += rows;
    }
    return ranges;
}

TensorSpec held_part_of(const TensorSpec& tensor, const MeshShape& mesh) {
    if (!is_expert_parallel(tensor, mesh)) return tp_shard_of(tensor, mesh.tp);
    TensorSpec held = tensor;
    held.rows = divided(tensor.rows, mesh.ep, "rows of experts");
    if (!tensor.blocks.empty()) held.blocks.resize(tensor.blocks.size() / static_cast<std::size_t>(mesh.ep));
    return held;
}

std::vector<OwnedRange> held_ranges(const TensorSpec& tensor, const MeshShape& mesh, const MeshCoordinates& at,
                                    Heads which) {
    if (!is_expert_parallel(tensor, mesh)) return tp_shard_ranges(tensor, mesh.tp, at.tp, which);
    if (which == Heads::copied) return {};
    const std::int64_t held = held_part_of(tensor, mesh).elements();
    return {{{coordinate(mesh, at, Axis::ep) * held}, 0, held}};
}

ZeroCut zero_cut(std::int64_t tp_shard_elements, int zero_ranks) {
    const std::int64_t shard = ceil_to((tp_shard_elements + zero_ranks - 1) / zero_ranks, shard_alignment);
    return {shard, shard * zero_ranks};
}

std::vector<OwnedRange> owned_ranges(const TensorSpec& tensor, const RankLayout& place, StateKind state, Heads which) {
    std::vector<OwnedRange> held = held_ranges(tensor, place.mesh, place.at, which);
    if (!is_sharded(state, place.zero_stage)) return held;
    const AxisSet zero = zero_axes_of(tensor, place.mesh);
    const int rank = group_rank(place.mesh, place.at, zero);
    if (tensor.owner >= 0) return rank == tensor.owner ? held : std::vector<OwnedRange>{};

    const ZeroCut cut = zero_cut(held_part_of(tensor, place.mesh).elements(), group_size(place.mesh, zero));
    const std::int64_t begin = rank * cut.shard;
    return ranges_within(held, begin, begin + cut.shard);
}

std::vector<OwnedRange> ranges_counted_once(const TensorSpec& tensor, const RankLayout& place) {
    if (is_whole_on_tp(tensor, place.mesh) && place.at.tp != 0) return {};
    if (tensor.tied && place.at.pp != 0) return {};
    if (!is_expert_parallel(tensor, place.mesh) && coordinate(place.mesh, place.at, Axis::replica) != 0) return {};
    return owned_ranges(tensor, {place.mesh, place.at, 1}, StateKind::optimizer, Heads::counted_once);
}

std::vector<LayerRange> balance_layers(std::int64_t layers, int parts, double embedding_cost, double classifier_cost) {
    ENSURE(parts >= 1 && layers >= parts, layers, " layers over ", parts, " pipeline parts");
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts), 1);
    std::vector<double> costs(static_cast<std::size_t>(parts), 1.0);
    costs.front() += embedding_cost;
    costs.back() += classifier_cost;
    for (std::int64_t left = layers - parts; left > 0; left--) {
        const auto cheapest = std::min_element(costs.begin(), costs.end()) - costs.begin();   // first if equal
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

namespace {

struct BestParts {
    double value;
    std::vector<LayerRange> ranges;
};

// Cuts layers into consecutive parts of at most `limit` each for the least value, which `join` makes of the value of
// the parts before and the cost of one more.
template <class Join>
BestParts best_parts(const std::vector<double>& costs, int parts, double embedding_cost, double classifier_cost,
                     double limit, Join join) {
    constexpr double none = std::numeric_limits<double>::infinity();
    const std::size_t layers = costs.size(), last = static_cast<std::size_t>(parts) - 1;
    // values of the first `end` layers in `part + 1` parts, and where the last of these begins
    std::vector<std::vector<double>> values(last + 1, std::vector<double>(layers + 1, none));
    std::vector<std::vector<std::size_t>> begins(last + 1, std::vector<std::size_t>(layers + 1, 0));
    for (std::size_t part = 0; part <= last; part++) {
        for (std::size_t end = part + 1; end <= layers; end++) {
            double own = (part == 0 ? embedding_cost : 0) + (part == last ? classifier_cost : 0);
            for (std::size_t begin = end; begin-- > part;) {
                own += costs[begin];
                if (own > limit) break;
                const double before = part > 0 ? values[part - 1][begin] : begin == 0 ? 0 : none;
                if (const double value = join(before, own); value < values[part][end]) {
                    values[part][end] = value, begins[part][end] = begin;
                }
            }
        }
    }
    BestParts best{values[last][layers], std::vector<LayerRange>(last + 1)};
    std::size_t end = layers;
    for (std::size_t part = last + 1; part-- > 0; end = begins[part][end]) {
        best.ranges[part] = {static_cast<std::int64_t>(begins[part][end]), static_cast<std::int64_t>(end)};
    }
    return best;
}

}   // namespace

std::vector<LayerRange> balance_layers(const std::vector<double>& costs, int parts, double embedding_cost,
                                       double classifier_cost) {
    ENSURE(parts >= 1 && std::ssize(costs) >= parts, costs.size(), " layers over ", parts, " pipeline parts");
    if (std::ranges::adjacent_find(costs, std::not_equal_to<>()) == costs.end()) {
        return balance_layers(std::ssize(costs), parts, embedding_cost / costs[0], classifier_cost / costs[0]);
    }
    auto best = [&](double limit, auto join) {
        return best_parts(costs, parts, embedding_cost, classifier_cost, limit, join);
    };
    const double most = best(std::numeric_limits<double>::infinity(), [](double before, double own) {
                            return std::max(before, own);
                        }).value;
    return best(most, [](double before, double own) { return before + own * own; }).ranges;
}

std::vector<int> assign_by_cost(const std::vector<double>& costs, int ranks) {
    std::vector<std::size_t> order(costs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return costs[i]; });
    std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
    std::vector<int> owners(costs.size());
    for (const std::size_t i : order) {
        const auto least = std::ranges::min_element(load);
        owners[i] = static_cast<int>(least - load.begin());
        *least += costs[i];
    }
    return owners;
}
