// Maps the consecutive elements of a local range to elements of a global tensor.
//
// A rank holds a contiguous range of a tensor, or equal pieces of each of its rows (a cut by columns), of which a ZeRO
// shard may begin and end in the middle of a piece. Values that must not depend on the layout (initial weights,
// stochastic rounding) are keyed by the global element, computed here: for kernels, and for folders that know no device
// (llmc/mesh).
#pragma once

#include <cstdint>

struct GlobalSpan {
    std::int64_t first = 0;     // global element of local element 0
    std::int64_t stride = 0;    // global elements from the start of one piece to the start of the next
    std::uint32_t length = 0;   // elements per piece; 0: the whole range is one piece
    std::uint32_t phase = 0;    // elements of its piece before local element 0

    constexpr std::int64_t element(std::int64_t local) const {
        if (length == 0) return first + local;
        const std::int64_t from_piece = phase + local;
        return first - phase + from_piece / length * stride + from_piece % length;
    }
    friend bool operator==(const GlobalSpan&, const GlobalSpan&) = default;
};
