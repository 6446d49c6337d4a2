#include "llmc/kernels/optim/newton_schulz.cuh"

#include "llmc/base/stand_in.h"
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
    orthogonalize<Real>(matmul, matrix.data(), {static_cast<int>(rows), static_cast<int>(cols), 1, 0}, how,
                        {other.data(), gram.data(), polynomial.data()}, test.stream);
    const Doubles result = reflected(other.values(), rows, cols);
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

namespace {

// Returns what becomes of `count` matrices in batches of `together`.
template <class Real>
Doubles made_orthogonal(const Doubles& x, int rows, int cols, int count, int together) {
    KernelTest test;
    MatrixBatch batch{rows, cols, together, static_cast<std::int64_t>(x.size()) / count};
    const auto matrices = test.tensor<Real>(x), other = test.tensor<Real>(Doubles(x.size()));
    const auto squares = static_cast<std::size_t>(together * batch.next_square());
    const auto grams = test.tensor<Real>(Doubles(squares)), polynomials = test.tensor<Real>(Doubles(squares));
    Matmul matmul(test.arena);
    for (int first = 0; first < count; first += together) {
        orthogonalize<Real>(matmul, matrices.data() + first * batch.next, batch,
                            newton_schulz(MuonCoefficients::quintic),
                            {other.data() + first * batch.next, grams.data(), polynomials.data()}, test.stream);
    }
    Doubles result;
    const Doubles all = other.values();
    for (int i = 0; i < count; i++) {   // without what lies between two matrices
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * batch.next);
        result.insert(result.end(), begin, begin + rows * cols);
    }
    return result;
}

// Checks batches; `allowed`: where a library takes another algorithm for them.
template <class Real>
void check_batches(double allowed) {
    for (const auto& [rows, cols] : {std::pair(40, 40), std::pair(24, 56), std::pair(56, 24), std::pair(11, 13)}) {
        constexpr int count = 6;
        Doubles x(static_cast<std::size_t>(count * ((rows * cols + 7) / 8 * 8)));
        for (std::size_t i = 0; i < x.size(); i++) {
            x[i] = std::sin(static_cast<double>(i * i)) / std::sqrt(static_cast<double>(rows * cols));
        }
        CAPTURE(rows);
        CAPTURE(cols);
        const Doubles alone = made_orthogonal<Real>(x, rows, cols, count, 1);
        for (const int together : {2, count}) {
            const Doubles found = made_orthogonal<Real>(x, rows, cols, count, together);
            double most = 0;
            for (std::size_t i = 0; i < found.size(); i++) most = std::max(most, std::abs(found[i] - alone[i]));
            CHECK(most <= allowed);
        }
    }
}

}   // namespace

TEST_CASE("newton-schulz: matrices in a batch become what each of them becomes alone, on a CPU to the bit") {
    check_batches<float>(stand_in() ? 0 : 1e-4);
    check_batches<bf16>(stand_in() ? 0 : 0.1);
}
