// Shared by the tests of grouped products: the kernels, orders of rows, expected results.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/kernel_testing.h"

// Returns the first row of each group of so many rows, and the end.
inline std::vector<int> offsets_of(const std::vector<int>& groups) {
    std::vector<int> offsets(groups.size() + 1, 0);
    std::partial_sum(groups.begin(), groups.end(), offsets.begin() + 1);
    return offsets;
}

// A product in doubles, and the sum of its terms' sizes.
struct Expected {
    Doubles sums, sizes;

    explicit Expected(std::size_t n) : sums(n), sizes(n) {}
    void add(std::size_t i, double x) { sums[i] += x, sizes[i] += std::abs(x); }

    // Checks a result of `terms` terms an element, added to `before` if there is one. Products are exact, and each
    // addition errs by at most two units of fp32: hardware truncates.
    template <class Out>
    void check(const TestTensor<Out>& result, const Doubles& before, int terms, const char* what) const {
        Doubles values = sums, errors(sums.size());
        for (std::size_t i = 0; i < values.size(); i++) {
            const double added = before.empty() ? 0 : before[i];
            values[i] += added;
            errors[i] = 1.01 * unit<Out> * std::abs(values[i]) +
                        2 * (terms + 3) * unit<float> * (sizes[i] + std::abs(added)) + 1e-30;
        }
        check_close(result.values(), values, errors, what);
    }
};

// A kernel and the type of its factors.
struct FmaFloat {
    using Real = float;
    static constexpr bool tensor_cores = false;
};
struct FmaBf16 {
    using Real = bf16;
    static constexpr bool tensor_cores = false;
};
struct TensorCores {
    using Real = bf16;
    static constexpr bool tensor_cores = true;
};

template <class Kernel, class Product>
void run(const Product& p, cudaStream_t stream) {
    if constexpr (Kernel::tensor_cores) {
        REQUIRE(grouped_mma_serves(p));
        launch_grouped_mma(p, stream);
    } else {
        launch_grouped(p, stream);
    }
}

// Rows of `chosen` choices by each token, in a mixed order. The first token's come last, in no group.
inline std::vector<int> mixed_source(int tokens, int chosen) {
    const int used = (tokens - 1) * chosen, stride = 37;
    REQUIRE(std::gcd(used, stride) == 1);
    std::vector<int> source;
    for (int i = 0; i < used; i++) source.push_back(chosen + i * stride % used);
    for (int i = 0; i < chosen; i++) source.push_back(i);
    return source;
}

template <class T>
bool same_bits(const TestTensor<T>& a, const TestTensor<T>& b) {
    const std::vector<T> of_a = a.raw(), of_b = b.raw();
    return of_a.size() == of_b.size() && std::memcmp(of_a.data(), of_b.data(), sizeof(T) * of_a.size()) == 0;
}
