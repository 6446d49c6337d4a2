#include "llmc/kernels/swiglu.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double silu_derivative(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

// Typical gates and ups, (rows, 2F), and the ends: where silu is 0, x, and where its slope overshoots.
template <class Real>
Doubles gates_and_ups(std::size_t n) {
    Doubles in = random_values<Real>(n, 2.0, 5);
    const double ends[] = {0.0, -0.0, 1e-20, -1e-20, 10.0, -10.0, 80.0, -80.0, 1e4, -1e4, -1.25, 3.0};
    for (std::size_t i = 0; i < n && i < std::size(ends); i++) in[i] = rounded<Real>(ends[i]);
    return in;
}

}   // namespace

TEST_CASE("swiglu: the reference's derivative agrees with central differences") {
    for (double x = -6; x < 6; x += 0.1) {
        const double h = 1e-5, slope = ((x + h) * sigmoid(x + h) - (x - h) * sigmoid(x - h)) / (2 * h);
        CHECK(silu_derivative(x) == doctest::Approx(slope).epsilon(1e-8));
    }
}

TEST_CASE_TEMPLATE("swiglu: forward and backward match double loops, for odd numbers of rows and widths", Real, float,
                   bf16) {
    KernelTest test;
    struct Size {
        int rows, F;
    };
    for (const Size size : {Size{1, 8}, Size{3, 8}, Size{1, 24}, Size{7, 40}, Size{5, 1000}, Size{33, 1376},
                            Size{2, 4104}, Size{257, 56}}) {
        INFO(size.rows, " rows of ", size.F);
        const auto rows = static_cast<std::size_t>(size.rows), F = static_cast<std::size_t>(size.F), n = rows * F;
        const Doubles in = gates_and_ups<Real>(2 * n), dout = random_values<Real>(n, 1.0, 6);
        Doubles out(n), out_size(n), din(2 * n), din_size(2 * n);
        for (std::size_t row = 0; row < rows; row++) {
            for (std::size_t k = 0; k < F; k++) {
                const std::size_t i = row * F + k, of_gate = 2 * row * F + k, of_up = of_gate + F;
                const double gate = in[of_gate], up = in[of_up], s = sigmoid(gate);
                out[i] = gate * s * up;
                out_size[i] = std::abs(out[i]);
                din[of_gate] = dout[i] * up * silu_derivative(gate);
                din[of_up] = dout[i] * gate * s;
                din_size[of_gate] = std::abs(dout[i] * up) * s * (1 + std::abs(gate));
                din_size[of_up] = std::abs(din[of_up]);
            }
        }
        // The exponential errs by about (2 + |gate|) units, and 1 - s by a unit of 1.
        const double operations = 100;
        const auto given = test.tensor<Real>(in), gradient = test.tensor<Real>(dout);
        const auto found = test.output<Real>(n), dfound = test.output<Real>(2 * n);
        swiglu_forward(found.data(), given.data(), size.rows, size.F, test.stream);
        check_close(found.values(), out, rounding_error<Real>(out, out_size, operations), "swiglu");
        swiglu_backward(dfound.data(), gradient.data(), given.data(), size.rows, size.F, test.stream);
        check_close(dfound.values(), din, rounding_error<Real>(din, din_size, operations), "swiglu gradient");
    }
}

TEST_CASE("swiglu: no rows are no work, and a width that is no multiple of 8 is a bug that is named") {
    KernelTest test;
    const auto in = test.output<float>(16), out = test.output<float>(8);
    swiglu_forward(out.data(), in.data(), 0, 8, test.stream);
    swiglu_backward(in.data(), out.data(), in.data(), 0, 8, test.stream);
    CHECK(out.values() == Doubles(8, 777.0));
    CHECK(in.values() == Doubles(16, 777.0));
    CHECK_THROWS_WITH_AS(swiglu_forward(out.data(), in.data(), 1, 7, test.stream), doctest::Contains("width 7"), Error);
    CHECK_THROWS_WITH_AS(swiglu_backward(in.data(), out.data(), in.data(), 1, 12, test.stream),
                         doctest::Contains("width 12"), Error);
}

TEST_CASE_TEMPLATE("swiglu: not-a-number passes through, from the gate and from the up", Real, float, bf16) {
    KernelTest test;
    Doubles values(16, 1.0);
    values[0] = NAN, values[8 + 1] = NAN;
    const auto in = test.tensor<Real>(values), out = test.output<Real>(8);
    swiglu_forward(out.data(), in.data(), 1, 8, test.stream);
    const Doubles found = out.values();
    CHECK(std::isnan(found[0]));
    CHECK(std::isnan(found[1]));
    CHECK(found[2] == doctest::Approx(sigmoid(1.0)).epsilon(0.01));
}
