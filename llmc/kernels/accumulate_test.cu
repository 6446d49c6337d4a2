#include "llmc/kernels/accumulate.cuh"

#include "llmc/kernels/kernel_testing.h"

TEST_CASE_TEMPLATE("accumulate: the sum is exact up to one rounding, any length and alignment", Real, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 7u, 8u, 9u, 2048u, 5003u}) {
        for (std::size_t shift : {0u, 1u}) {
            const Doubles a = random_values<Real>(n, 1.0, 1), b = random_values<Real>(n, 2.0, 2);
            Doubles sum(n), twice(n);
            for (std::size_t i = 0; i < n; i++) sum[i] = rounded<Real>(a[i] + b[i]);
            for (std::size_t i = 0; i < n; i++) twice[i] = 2 * b[i];
            TestTensor<Real> out = test.tensor<Real>(a, shift), more = test.tensor<Real>(b);
            accumulate(out.data(), more.data(), static_cast<std::int64_t>(n), test.stream);
            CHECK(out.values() == sum);
            accumulate(more.data(), more.data(), static_cast<std::int64_t>(n), test.stream);   // itself
            CHECK(more.values() == twice);
        }
    }
}
