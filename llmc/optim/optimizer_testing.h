// For tests of optimizers: norms and blocks in double, gradients drawn, and learning rates that suit each rule.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "dev/test/certificate/certificate_testing.h"

namespace certificate {

using Doubles = std::vector<double>;

inline double norm_of(const Doubles& x, std::size_t begin, std::size_t end) {
    double squares = 0;
    for (std::size_t i = begin; i < end; i++) squares += x[i] * x[i];
    return std::sqrt(squares);
}

inline double distance(Doubles x, const Doubles& y) {
    for (std::size_t i = 0; i < x.size(); i++) x[i] -= y[i];
    return norm_of(x, 0, x.size());
}

// The blocks of a tensor, as elements.
inline std::vector<std::pair<std::size_t, std::size_t>> blocks(const TensorSpec& tensor) {
    std::vector<std::pair<std::size_t, std::size_t>> result;
    std::size_t begin = 0;
    for (std::int64_t rows : tensor.blocks.empty() ? std::vector{tensor.rows} : tensor.blocks) {
        const std::size_t end = begin + static_cast<std::size_t>(rows * tensor.cols);
        result.emplace_back(begin, end);
        begin = end;
    }
    return result;
}

inline float rate_of(OptimizerKind kind) {
    switch (kind) {
        case OptimizerKind::lars: return 20.0f;
        case OptimizerKind::lamb: return 1e-2f;
        case OptimizerKind::sgd: return 1e-1f;
        default: return 1e-3f;
    }
}

inline std::vector<float> drawn(std::size_t count, std::uint64_t key) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; i++) {
        values[i] = static_cast<float>(static_cast<double>(mix64(key + i) >> 11) * 0x1p-53 - 0.5) * 0.02f;
    }
    return values;
}

inline Doubles doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

}   // namespace certificate
