#include "llmc/run/metrics/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llmc/base/log.h"

ExpertLoad expert_load(std::span<const std::int32_t> counts, std::size_t experts) {
    ExpertLoad load;
    for (; counts.size() >= experts; counts = counts.subspan(experts)) {
        const std::span<const std::int32_t> layer = counts.first(experts);
        const double all = std::accumulate(layer.begin(), layer.end(), 0.0), mean = all / static_cast<double>(experts);
        if (all == 0) continue;
        double entropy = 0;
        for (const std::int32_t n : layer) entropy -= n == 0 ? 0 : n / all * std::log(n / all);
        load.fullest = std::max(load.fullest, *std::ranges::max_element(layer) / mean);
        load.emptiest = std::min(load.emptiest, *std::ranges::min_element(layer) / mean);
        if (experts > 1) load.entropy = std::min(load.entropy, entropy / std::log(static_cast<double>(experts)));
    }
    return load;
}

std::vector<double> rank_loads(std::span<const std::int32_t> most, std::span<const std::int32_t> counts,
                               std::span<const std::int32_t> dropped, std::size_t experts, int ranks) {
    std::vector<double> loads;
    for (std::size_t layer = 0; layer < most.size(); layer++) {
        const std::span<const std::int32_t> own = counts.subspan(layer * experts, experts);
        const double lost = dropped.empty() ? 0 : dropped[layer];
        const double mean = (std::accumulate(own.begin(), own.end(), 0.0) - lost) / ranks;
        loads.push_back(mean == 0 ? 1 : most[layer] / mean);
    }
    return loads;
}

std::optional<double> dropped_share(std::span<const std::int32_t> dropped, std::span<const std::int32_t> counts) {
    if (dropped.empty()) return std::nullopt;
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    return all == 0 ? 0 : std::accumulate(dropped.begin(), dropped.end(), 0.0) / all;
}

std::string load_text(const ExpertLoad& load) {
    std::string line = formatted("experts %.2f-%.2f, entropy %.3f", load.emptiest, load.fullest, load.entropy);
    if (load.dropped) line += formatted(", %.2f%% dropped", 100 * *load.dropped);
    if (load.balance_loss != 0) line += formatted(", balance loss %.4g", load.balance_loss);
    if (load.z_loss != 0) line += formatted(", router z-loss %.4g", load.z_loss);
    return line;
}
