#include "llmc/run/evaluation/windows.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "llmc/base/ensure.h"

namespace {

constexpr int window_multiple = 64;

}   // namespace

int window_unit(const Stage& stage) { return sequence_unit(stage.context().cp, stage.sizes().residual_parts); }

int window_size(int T, int tokens, int unit) {
    const int multiple = std::lcm(window_multiple, unit);
    return std::min(T / unit * unit, (tokens + multiple - 1) / multiple * multiple);
}

int window_size_for(int T, int tokens, int unit) {
    const int window = window_size(T, tokens, unit);
    return window < tokens ? T : window;
}

std::vector<Pass> passes_of(std::span<const int> lengths, const PassRoom& room) {
    ENSURE(std::ranges::is_sorted(lengths, std::greater{}), "rows of a length follow each other");
    std::vector<Pass> passes;
    const auto replicas = static_cast<std::size_t>(room.replicas);
    for (std::size_t begin = 0; begin < lengths.size();) {
        const int T = window_size_for(room.T, lengths[begin], room.unit);
        const auto same = std::ranges::find_if(
            lengths.subspan(begin), [&](int length) { return window_size_for(room.T, length, room.unit) != T; });
        const auto rows = static_cast<std::size_t>(same - lengths.subspan(begin).begin());
        const std::size_t left = (rows + replicas - 1) / replicas;   // for each replica
        const auto most = static_cast<std::size_t>(std::int64_t{room.B} * room.T / T);
        // ranks that share rows may share T only in the number of sequences that the stage was made for
        const std::size_t B = T % room.unit == 0 ? std::min(most, left) : static_cast<std::size_t>(room.B);
        const std::size_t end = begin + std::min(B * replicas, rows);
        passes.push_back({static_cast<int>(B), T, begin, end});
        begin = end;
    }
    return passes;
}
