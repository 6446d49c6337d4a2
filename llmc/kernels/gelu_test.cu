#include "llmc/kernels/gelu.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

const double kRootTwoOverPi = std::sqrt(2.0 / 3.14159265358979323846);

double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x))); }

double gelu_derivative(double x) {
    double t = std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * 0.044715 * x * x);
}

// Typical activations, and the ends: where it is 0, x, and where its slope overshoots.
template <class Real>
Doubles activations(std::size_t n) {
    Doubles x = random_values<Real>(n, 2.0, 5);
    const double ends[] = {0.0, -0.0, 1e-20, -1e-20, 10.0, -10.0, 100.0, -100.0, 1e4, -1e4, -0.75, 3.0};
    for (std::size_t i = 0; i < n && i < std::size(ends); i++) x[n - 1 - i] = rounded<Real>(ends[i]);
    return x;
}

}   // namespace

TEST_CASE("gelu: the reference's derivative agrees with central differences") {
    for (double x = -6; x < 6; x += 0.1) {
        CHECK(gelu_derivative(x) == doctest::Approx((gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5).epsilon(1e-8));
    }
}

TEST_CASE_TEMPLATE("gelu: forward and backward match double loops", Real, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 8u, 13u, 2048u, 4099u}) {
        for (std::size_t shift : {0u, 3u}) {
            Doubles x = activations<Real>(n), dout = random_values<Real>(n, 1.0, 6);
            Doubles y(n), size(n), dx(n), dsize(n);
            for (std::size_t i = 0; i < n; i++) {
                y[i] = gelu(x[i]);
                size[i] = std::abs(x[i]);
                dx[i] = dout[i] * gelu_derivative(x[i]);
                dsize[i] = std::abs(dout[i]) * (1 + std::abs(x[i]));
            }
            // The hardware's exponential errs by about (2 + |argument|) units, and the argument (where the result is
            // not saturated) stays below 16; the polynomial by 2, plus what rounding the argument does: its size in
            // units.
            TestTensor<Real> in = test.tensor<Real>(x), out = test.output<Real>(n, shift),
                             din = test.output<Real>(n, shift);
            gelu_forward(out.data(), in.data(), static_cast<std::int64_t>(n), test.stream);
            check_close(out.values(), y, rounding_error<Real>(y, size, 8), "gelu");
            gelu_backward(din.data(), test.tensor<Real>(dout).data(), in.data(), static_cast<std::int64_t>(n),
                          test.stream);
            check_close(din.values(), dx, rounding_error<Real>(dx, dsize, 16), "gelu gradient");
        }
    }
}

TEST_CASE("gelu: backward may overwrite the gradient it reads") {
    KernelTest test;
    auto in = test.random<bf16>(1000, 1.0, 1), dout = test.random<bf16>(1000, 1.0, 2), din = test.output<bf16>(1000);
    gelu_backward(din.data(), dout.data(), in.data(), 1000, test.stream);
    gelu_backward(dout.data(), dout.data(), in.data(), 1000, test.stream);
    CHECK(same_bits(din.raw(), dout.raw()));
}

TEST_CASE_TEMPLATE("gelu: not-a-number passes through", Real, float, bf16) {
    KernelTest test;
    auto in = test.tensor<Real>({NAN, 1.0}), out = test.output<Real>(2);
    gelu_forward(out.data(), in.data(), 2, test.stream);
    CHECK(std::isnan(out.values()[0]));
    CHECK(out.values()[1] == doctest::Approx(gelu(1.0)).epsilon(0.01));
}
