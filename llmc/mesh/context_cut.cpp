#include "llmc/mesh/context_cut.h"

std::vector<int> ContextCut::ring_members() const {
    std::vector<int> members;
    for (int i = 0; i < ring_size(); i++) members.push_back(i * ulysses + ulysses_rank());
    return members;
}

std::vector<int> ContextCut::ulysses_members() const {
    std::vector<int> members;
    for (int i = 0; i < ulysses; i++) members.push_back(ring_rank() * ulysses + i);
    return members;
}

std::vector<TokenRange> zigzag_ranges(int ring_size, int ring_rank, std::int64_t T) {
    if (ring_size == 1) return {{0, T}};
    ENSURE(T % (2 * ring_size) == 0, "a sequence of ", T, " tokens over a ring of ", ring_size);
    const std::int64_t slice = T / (2 * ring_size);
    return {{ring_rank * slice, slice}, {(2 * ring_size - 1 - ring_rank) * slice, slice}};
}

std::vector<TokenRange> token_ranges(const ContextCut& cut, std::int64_t T) {
    ENSURE(T % (2 * cut.cp) == 0 || cut.cp == 1, "a sequence of ", T, " tokens over ", cut.cp, " ranks");
    if (cut.cp == 1) return {{0, T}};
    const std::int64_t count = T / cut.cp, first = count * cut.ulysses_rank();
    std::vector<TokenRange> ranges;
    std::int64_t before = 0;   // the ring rank's tokens in earlier slices
    for (const TokenRange& slice : zigzag_ranges(cut.ring_size(), cut.ring_rank(), T)) {
        const std::int64_t begin = std::max(first, before), end = std::min(first + count, before + slice.length);
        if (begin < end) ranges.push_back({slice.begin + begin - before, end - begin});
        before += slice.length;
    }
    return ranges;
}

std::vector<TokenRange> attended_ranges(const ContextCut& cut, std::int64_t T) {
    return zigzag_ranges(cut.ring_size(), cut.ring_rank(), T);
}

std::vector<int> token_positions(const std::vector<TokenRange>& ranges) {
    std::vector<int> positions;
    for (const TokenRange& range : ranges) {
        for (std::int64_t t = 0; t < range.length; t++) positions.push_back(static_cast<int>(range.begin + t));
    }
    return positions;
}
