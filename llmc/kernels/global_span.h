// Maps the consecutive elements of a local range to elements of a global tensor.
//
// A rank holds a contiguous range of a tensor, or equal pieces of each of its rows (row parallel), of which a ZeRO
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

// Walks over consecutive local elements; one division serves all of them.
class GlobalWalk {
public:
    constexpr GlobalWalk(const GlobalSpan& span, std::int64_t local)
        : element_(span.element(local)), length_(span.length), gap_(span.stride - span.length) {
        if (length_ > 0) left_ = length_ - static_cast<std::uint32_t>((span.phase + local) % length_);
    }
    constexpr std::int64_t element() const { return element_; }
    constexpr void next() {
        element_++;
        if (length_ > 0 && --left_ == 0) element_ += gap_, left_ = length_;
    }

private:
    std::int64_t element_;
    std::uint32_t length_, left_ = 0;   // elements of a piece, and of this one from here on
    std::int64_t gap_;                  // from the end of a piece to the start of the next
};
