#include "llmc/model/attention/ulysses.h"

#include "llmc/kernels/transpose_pieces.cuh"

void Ulysses::reserve(const Sizes& s) {
    const std::size_t n = for_each_rank(s) * static_cast<std::size_t>(group_.size());
    if (n <= sent_.size()) return;
    sent_ = arena_.allocate<floatX>("context/sent", n);
    received_ = arena_.allocate<floatX>("context/received", n);
}

// Returns the elements that go to each rank of the group.
std::size_t Ulysses::for_each_rank(const Sizes& s) const {
    return static_cast<std::size_t>(s.B) * static_cast<std::size_t>(s.T) *
           static_cast<std::size_t>(blocks(s).columns());
}

RankedBlocks Ulysses::blocks(const Sizes& s) const {
    const std::int64_t u = group_.size();
    return {{s.channels[0] / u, s.channels[1] * s.copies / u, s.channels[2] * s.copies / u}, s.copies};
}

void Ulysses::to_heads(floatX* out, const floatX* in, const Sizes& s) {
    const std::int64_t u = group_.size();
    gather_ranks(sent_.data(), in, std::int64_t{s.B} * s.T, u, blocks(s), stream_);
    group_.all_to_all(received_.data(), sent_.data(), for_each_rank(s), stream_);
    // put the tokens of the ranks in order
    transpose_pieces(out, received_.data(), u, s.B, s.T * blocks(s).columns(), stream_);
}

void Ulysses::to_tokens(floatX* out, const floatX* in, const Sizes& s) {
    const std::int64_t u = group_.size();
    transpose_pieces(sent_.data(), in, s.B, u, s.T * blocks(s).columns(), stream_);
    group_.all_to_all(received_.data(), sent_.data(), for_each_rank(s), stream_);
    scatter_ranks(out, received_.data(), std::int64_t{s.B} * s.T, u, blocks(s), stream_);
}
