#include "llmc/kernels/rows/residual.cuh"

#include "llmc/kernels/kernel_testing.h"

TEST_CASE_TEMPLATE("residual: the sum is exact up to one rounding, any length and alignment", Real, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 7u, 8u, 9u, 2048u, 5003u}) {
        for (std::size_t shift : {0u, 1u}) {
            Doubles a = random_values<Real>(n, 1.0, 1), b = random_values<Real>(n, 2.0, 2), sum(n);
            for (std::size_t i = 0; i < n; i++) sum[i] = rounded<Real>(a[i] + b[i]);
            TestTensor<Real> out = test.output<Real>(n, shift);
            residual_forward(out.data(), test.tensor<Real>(a).data(), test.tensor<Real>(b).data(),
                             static_cast<std::int64_t>(n), test.stream);
            CHECK(out.values() == sum);
        }
    }
}

TEST_CASE("residual: the output may be one of the inputs") {
    KernelTest test;
    Doubles a = random_values<float>(100, 1.0, 1), b = random_values<float>(100, 1.0, 2), sum(100);
    for (std::size_t i = 0; i < 100; i++) sum[i] = rounded<float>(a[i] + b[i]);
    TestTensor<float> both = test.tensor<float>(a);
    residual_forward(both.data(), both.data(), test.tensor<float>(b).data(), 100, test.stream);
    check_close(both.values(), sum, Doubles(100, 0.0), "in place");
}

TEST_CASE_TEMPLATE("residual: fused with layernorm it is bit-equal to the separate kernels", Real, float, bf16) {
    bool rms = false;
    SUBCASE("layer normalisation") {}
    SUBCASE("RMSNorm") { rms = true; }
    KernelTest test;
    for (int C : {8, 48, 65, 768, 1600, 13000}) {
        const int rows = 11;
        const std::size_t n = static_cast<std::size_t>(rows) * C;
        auto a = test.random<Real>(n, 1.0, 1), b = test.random<Real>(n, 1.0, 2);
        auto weight = test.random<Real>(C, 1.0, 3), bias = test.random<Real>(C, 1.0, 4);
        auto sum = test.output<Real>(n), out = test.output<Real>(n);
        auto mean = test.output<float>(rows), rstd = test.output<float>(rows);
        residual_forward(sum.data(), a.data(), b.data(), static_cast<std::int64_t>(n), test.stream);
        const Real* const added = rms ? nullptr : bias.data();
        layernorm_forward<Real>(
            {out.data(), rms ? nullptr : mean.data(), rstd.data(), sum.data(), weight.data(), added, rows, C},
            test.stream);

        auto fused_sum = test.output<Real>(n), fused_out = test.output<Real>(n);
        auto fused_mean = test.output<float>(rows), fused_rstd = test.output<float>(rows);
        residual_layernorm_forward<Real>({fused_sum.data(), fused_out.data(), rms ? nullptr : fused_mean.data(),
                                          fused_rstd.data(), a.data(), b.data(), weight.data(), added, rows, C},
                                         test.stream);
        CHECK(same_bits(sum.raw(), fused_sum.raw()));
        CHECK(same_bits(out.raw(), fused_out.raw()));
        if (!rms) CHECK(same_bits(mean.raw(), fused_mean.raw()));
        CHECK(same_bits(rstd.raw(), fused_rstd.raw()));
    }
}
