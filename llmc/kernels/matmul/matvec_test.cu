#include "llmc/kernels/matmul/matvec.cuh"

#include "llmc/kernels/kernel_testing.h"

TEST_CASE_TEMPLATE("matvec: every sum is exact up to the rounding of its terms, any size", Real, float, bf16) {
    for (int N : {1, 15, 16, 50}) {
        for (int K : {8, 48, 264, 768, 1600}) {
            KernelTest test;
            const auto n = static_cast<std::size_t>(N), k = static_cast<std::size_t>(K);
            const Doubles weight = random_values<Real>(n * k, 1.0, 1), in = random_values<Real>(k, 1.0, 2),
                          bias = random_values<Real>(n, 1.0, 3);
            auto out = test.output<Real>(n), without_bias = test.output<Real>(n);
            auto w = test.tensor<Real>(weight), x = test.tensor<Real>(in), b = test.tensor<Real>(bias);
            matrix_vector<Real>({out.data(), x.data(), w.data(), b.data(), N, K}, test.stream);
            matrix_vector<Real>({without_bias.data(), x.data(), w.data(), nullptr, N, K}, test.stream);
            Doubles sum(n, 0.0), with_bias(n), size(n, 0.0);
            for (std::size_t i = 0; i < n; i++) {
                for (std::size_t j = 0; j < k; j++) {
                    sum[i] += weight[i * k + j] * in[j];
                    size[i] += std::abs(weight[i * k + j] * in[j]);
                }
                with_bias[i] = sum[i] + bias[i];
                size[i] += std::abs(bias[i]);
            }
            // a term passes through at most K / 8 additions, and the few that join the lanes
            const double operations = K / 8.0 + 16;
            check_close(out.values(), with_bias, rounding_error<Real>(with_bias, size, operations), "with bias");
            check_close(without_bias.values(), sum, rounding_error<Real>(sum, size, operations), "without bias");
        }
    }
}

TEST_CASE("matvec: what is not in packets is a bug of the caller") {
    KernelTest test;
    auto x = test.random<float>(64, 1.0, 1), w = test.random<float>(64, 1.0, 2);
    auto out = test.output<float>(4);
    CHECK_THROWS_AS(matrix_vector<float>({out.data(), x.data(), w.data(), nullptr, 4, 12}, test.stream), Error);
    CHECK_THROWS_AS(matrix_vector<float>({out.data(), x.data() + 1, w.data(), nullptr, 4, 8}, test.stream), Error);
}
