// Ulysses: ranks that share a sequence exchange tokens for heads, so that each has all tokens of some heads.
// Jacobs et al., "DeepSpeed Ulysses: system optimizations for enabling training of extreme long sequence transformer
// models", 2023.
//
// Each of u ranks sends, per call and for each tensor (q, k and v; or attention's output or its gradient) of s
// elements, s (u-1)/u. If there are more ranks than KV heads, u / heads ranks get copies of a head: these count in s.
// On the way back their gradients, each rounded to floatX, are added up in fp32 and rounded again. Tokens come out in
// the order of the sequence.
#pragma once

#include <array>

#include "llmc/base/arena.h"
#include "llmc/model/precision.h"
#include "llmc/process/comm.h"

struct RankedBlocks;   // llmc/kernels/transpose_pieces.cuh

class Ulysses {
public:
    // `group`: the ranks that exchange, in the order of their tokens.
    Ulysses(Communicator& group, Arena& arena, cudaStream_t stream) : group_(group), arena_(arena), stream_(stream) {}

    // Sizes of one exchange on this rank: B sequences, T tokens of each before, and all heads together.
    struct Sizes {
        int B, T;
        std::array<std::int64_t, 3> channels;   // q's, k's and v's; or one tensor's, then 0
        std::int64_t copies = 1;                // ranks that get the same channels of k and v
    };
    // Takes memory for calls of at most these sizes. Nothing may be in flight.
    void reserve(const Sizes& largest);

    // Exchanges tokens for heads: in (B, T, channels of each tensor), `out` (B, u T, channels / u of each, of k and v
    // times copies). They may be the same memory.
    void to_heads(floatX* out, const floatX* in, const Sizes& sizes);
    // Exchanges back: copies are added up.
    void to_tokens(floatX* out, const floatX* in, const Sizes& sizes);

private:
    std::size_t for_each_rank(const Sizes& s) const;
    RankedBlocks blocks(const Sizes& s) const;

    Communicator& group_;
    Arena& arena_;
    cudaStream_t stream_;
    DeviceBuffer<floatX> sent_, received_;   // pieces by rank
};
