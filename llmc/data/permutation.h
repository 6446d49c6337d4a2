// A pseudo-random permutation of [0, n) that needs no memory: element i is computed alone, for any n below 2^62.
//
// A Feistel network over pairs (a, b) with A * B >= n, as in Black and Rogaway, "Ciphers with arbitrary finite domains"
// (CT-RSA 2002): each round adds a hash of one half to the other, modulo that half's own size, which is invertible
// whatever the hash. Values that land in [n, A * B) walk on along their cycle until they come back below n; as
// A * B < n + A, hardly any do. Both steps are bijective, so the whole is, for every n, seed and epoch.
#pragma once

#include <cmath>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/base/rng.h"

class Permutation {
public:
    static constexpr int kRounds = 8;

    Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch)
        : n_(n), key_(mix64(mix64(seed) ^ (epoch + 1))) {
        ENSURE(n >= 1 && n < (1ull << 62), "a permutation of ", n, " elements");
        rows_ = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
        while (rows_ * rows_ < n) rows_++;   // the square root rounded up, whatever the rounding of sqrt
        columns_ = (n + rows_ - 1) / rows_;
    }

    std::uint64_t size() const { return n_; }

    std::uint64_t operator()(std::uint64_t i) const {
        ENSURE(i < n_, "element ", i, " of a permutation of ", n_);
        do {
            i = encrypt(i);
        } while (i >= n_);
        return i;
    }

private:
    std::uint64_t encrypt(std::uint64_t i) const {
        std::uint64_t row = i / columns_, column = i % columns_;
        for (std::uint64_t round = 0; round < kRounds; round += 2) {
            row = (row + hash(round, column) % rows_) % rows_;
            column = (column + hash(round + 1, row) % columns_) % columns_;
        }
        return row * columns_ + column;
    }
    std::uint64_t hash(std::uint64_t round, std::uint64_t value) const {
        return mix64(key_ + mix64(value * kRounds + round));
    }

    std::uint64_t n_, key_;
    std::uint64_t rows_ = 1, columns_ = 1;
};
