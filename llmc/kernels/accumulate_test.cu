#include "llmc/kernels/accumulate.cuh"

#include <algorithm>
#include <cmath>
#include <limits>

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

TEST_CASE("copy_delayed: a copy to the bit, or NaN everywhere if no float holds the loss, any length and alignment") {
    KernelTest test;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    for (const double loss : {2.5, 1e39, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
        const DeviceBuffer<double> of_step = test.keep(test.arena.allocate<double>("test/loss", 1));
        of_step.upload(std::vector<double>{loss}, test.stream);
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
        for (std::size_t n : {1u, 7u, 8u, 9u, 2048u, 5003u}) {
            for (std::size_t shift : {0u, 1u}) {
                const Doubles a = random_values<float>(n, 1.0, 1);
                TestTensor<float> x = test.tensor<float>(a, shift), out = test.tensor<float>(Doubles(n, 7.0));
                copy_delayed(out.data(), x.data(), static_cast<std::int64_t>(n), of_step.data(), test.stream);
                const Doubles copied = out.values();
                const bool is_finite = std::isfinite(static_cast<float>(loss));
                if (is_finite) CHECK(copied == a);
                if (!is_finite) CHECK(std::ranges::all_of(copied, [](double v) { return std::isnan(v); }));
            }
        }
    }
}
