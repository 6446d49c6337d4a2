#include "llmc/kernels/optim/newton_schulz.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

// (I - 2uu^T) x (I - 2vv^T): singular values stay, so do those of what is made of it; twice is nothing.
Doubles reflected(Doubles x, std::size_t rows, std::size_t cols) {
    auto unit_vector = [](std::size_t n) {
        Doubles u(n);
        double squares = 0;
        for (std::size_t i = 0; i < n; i++) squares += (u[i] = std::sin(static_cast<double>(3 * i + 1))) * u[i];
        for (double& value : u) value /= std::sqrt(squares);
        return u;
    };
    const Doubles u = unit_vector(rows), v = unit_vector(cols);
    for (std::size_t c = 0; c < cols; c++) {
        double dot = 0;
        for (std::size_t r = 0; r < rows; r++) dot += u[r] * x[r * cols + c];
        for (std::size_t r = 0; r < rows; r++) x[r * cols + c] -= 2 * dot * u[r];
    }
    for (std::size_t r = 0; r < rows; r++) {
        double dot = 0;
        for (std::size_t c = 0; c < cols; c++) dot += v[c] * x[r * cols + c];
        for (std::size_t c = 0; c < cols; c++) x[r * cols + c] -= 2 * dot * v[c];
    }
    return x;
}

// Singular values from 0.01 to 1, through five iterations; `loose`: what rounding may add.
template <class Real>
void check_singular_values(MuonCoefficients which, double lowest, double highest, std::size_t rows, std::size_t cols,
                           double loose) {
    INFO(rows, " x ", cols, ", coefficients ", static_cast<int>(which));
    const NewtonSchulz how = newton_schulz(which);
    const std::size_t n = std::min(rows, cols);
    Doubles x(rows * cols, 0.0);
    for (std::size_t i = 0; i < n; i++) {
        const double value = std::pow(0.01, static_cast<double>(i) / static_cast<double>(n - 1));
        x[i * cols + i] = value / static_cast<double>(how.norm_scale);
    }
    KernelTest test;
    const auto matrix = test.tensor<Real>(reflected(x, rows, cols));
    const auto other = test.tensor<Real>(Doubles(rows * cols)), gram = test.tensor<Real>(Doubles(n * n)),
               polynomial = test.tensor<Real>(Doubles(n * n));
    Matmul matmul(test.arena);
    orthogonalize<Real>(matmul, matrix.data(), static_cast<int>(rows), static_cast<int>(cols), how,
                        {other.data(), gram.data(), polynomial.data()}, test.stream);
    const Doubles result = reflected(matrix.values(), rows, cols);
    double least = 1e9, most = 0, beside = 0;
    for (std::size_t i = 0; i < rows * cols; i++) {
        if (i / cols == i % cols) {
            least = std::min(least, result[i]), most = std::max(most, result[i]);
        } else {
            beside = std::max(beside, std::abs(result[i]));
        }
    }
    CHECK(least > lowest - loose);
    CHECK(most < highest + loose);
    CHECK(beside < (loose > 0.01 ? loose : 1e-4));   // the directions are what they were
}

}   // namespace

TEST_CASE("newton-schulz: singular values from 0.01 to 1 come near 1 in five iterations, directions stay") {
    for (const auto& [rows, cols] : {std::pair(200, 200), std::pair(96, 240), std::pair(240, 96), std::pair(33, 57)}) {
        check_singular_values<float>(MuonCoefficients::simple, 0.682, 1.134, rows, cols, 5e-4);
        check_singular_values<float>(MuonCoefficients::quintic, 0.978, 1.032, rows, cols, 5e-4);
        check_singular_values<float>(MuonCoefficients::polar_express, 0.859, 1.141, rows, cols, 5e-4);
        check_singular_values<bf16>(MuonCoefficients::quintic, 0.978, 1.032, rows, cols, 0.1);
    }
}
