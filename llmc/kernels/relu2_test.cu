#include "llmc/kernels/relu2.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

double relu2(double x) { return x > 0 ? x * x : 0; }
double relu2_derivative(double x) { return x > 0 ? 2 * x : 0; }

// Typical activations, and the ends.
template <class Real>
Doubles activations(std::size_t n) {
    Doubles x = random_values<Real>(n, 2.0, 5);
    const double ends[] = {0.0, -0.0, 1e-10, -1e-10, 100.0, -100.0, 1e4, -1e4};
    for (std::size_t i = 0; i < n && i < std::size(ends); i++) x[n - 1 - i] = rounded<Real>(ends[i]);
    return x;
}

}   // namespace

TEST_CASE("relu2: the reference's derivative agrees with central differences") {
    for (double x = -6.05; x < 6; x += 0.1) {
        CHECK(relu2_derivative(x) == doctest::Approx((relu2(x + 1e-5) - relu2(x - 1e-5)) / 2e-5).epsilon(1e-8));
    }
}

TEST_CASE_TEMPLATE("relu2: forward and backward match double loops", Real, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 8u, 13u, 2048u, 4099u}) {
        for (std::size_t shift : {0u, 3u}) {
            const Doubles x = activations<Real>(n), dout = random_values<Real>(n, 1.0, 6);
            Doubles y(n), dx(n), dsize(n);
            for (std::size_t i = 0; i < n; i++) {
                y[i] = relu2(x[i]);
                dx[i] = dout[i] * relu2_derivative(x[i]);
                dsize[i] = std::abs(dx[i]);
            }
            TestTensor<Real> in = test.tensor<Real>(x), out = test.output<Real>(n, shift),
                             din = test.output<Real>(n, shift);
            // one product of two fp32 numbers, doubling is exact
            relu2_forward(out.data(), in.data(), static_cast<std::int64_t>(n), test.stream);
            check_close(out.values(), y, rounding_error<Real>(y, y, 1), "relu2");
            relu2_backward(din.data(), test.tensor<Real>(dout).data(), in.data(), static_cast<std::int64_t>(n),
                           test.stream);
            check_close(din.values(), dx, rounding_error<Real>(dx, dsize, 1), "relu2 gradient");
        }
    }
}

TEST_CASE("relu2: backward may overwrite the gradient it reads") {
    KernelTest test;
    auto in = test.random<bf16>(1000, 1.0, 1), dout = test.random<bf16>(1000, 1.0, 2), din = test.output<bf16>(1000);
    relu2_backward(din.data(), dout.data(), in.data(), 1000, test.stream);
    relu2_backward(dout.data(), dout.data(), in.data(), 1000, test.stream);
    CHECK(same_bits(din.raw(), dout.raw()));
}

TEST_CASE_TEMPLATE("relu2: not-a-number passes through", Real, float, bf16) {
    KernelTest test;
    auto in = test.tensor<Real>({NAN, 2.0}), out = test.output<Real>(2);
    relu2_forward(out.data(), in.data(), 2, test.stream);
    CHECK(std::isnan(out.values()[0]));
    CHECK(out.values()[1] == 4.0);
}
