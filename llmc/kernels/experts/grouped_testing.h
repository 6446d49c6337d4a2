// Expected results of grouped products, for their tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

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
