// Matrices and their thin factors (low_rank.cuh).
#pragma once

#include <cstdint>

// Matrices (rows, cols), one after another, and their factors: (rank, rows) each on the left, (rank, cols) on the
// right.
struct LowRank {
    std::int64_t count = 1, rows = 0, cols = 0;
    int rank = 0;
    std::int64_t elements() const { return count * rows * cols; }
    std::int64_t of_left() const { return count * rank * rows; }
    std::int64_t of_right() const { return count * rank * cols; }
};
