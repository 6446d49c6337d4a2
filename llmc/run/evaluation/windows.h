// Shapes of forwards that need fewer tokens of a sequence than the stage was made for. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "llmc/model/stage/stage.h"

// Returns the multiple of tokens that a stage's ranks can share evenly, in any number of sequences.
int window_unit(const Stage& stage);

// Returns a length for sequences that need `tokens`, a multiple of `unit`, at most T / unit * unit. Lengths are few, so
// that there are few matmul shapes.
int window_size(int T, int tokens, int unit);
// Returns the same, but T where that is too short for `tokens`, which are at most T.
int window_size_for(int T, int tokens, int unit);

// Room for the rows of a pass.
struct PassRoom {
    int B, T;           // the stage's own shape: a pass has at most B x T tokens on a replica
    int unit;           // shorter rows are multiples of it
    int replicas = 1;   // each computes B rows of a pass
};

// Rows [begin, end) of a list, computed at once as B rows of T tokens on each replica. The last rows may be missing.
struct Pass {
    int B, T;
    std::size_t begin, end;
    friend bool operator==(const Pass&, const Pass&) = default;
};

// Cuts a list of rows, whose lengths do not increase, into passes of the length that each of their rows needs. Every
// rank finds the same ones.
std::vector<Pass> passes_of(std::span<const int> lengths, const PassRoom& room);
