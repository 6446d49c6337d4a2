// Gradients as products of thin matrices: each kernel against plain loops in double precision, factors that are
// orthogonal, directions that a matrix does not have.
#include "llmc/kernels/optim/low_rank.cuh"

#include <doctest/doctest.h>

#include "llmc/kernels/kernel_testing.h"

namespace {

const LowRank shapes[]{{1, 40, 24, 4}, {1, 7, 300, 1}, {3, 129, 5, 3}, {2, 33, 130, 6}, {1, 4500, 8, 2}};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Element (i, j) of matrix c, among matrices of rows x cols.
double at(const Doubles& values, std::int64_t c, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols) {
    return values[size((c * rows + i) * cols + j)];
}

void near(const Doubles& values, const Doubles& expected, double slack) {
    REQUIRE(values.size() == expected.size());
    double most = 0;
    for (std::size_t i = 0; i < values.size(); i++) most = std::max(most, std::abs(values[i] - expected[i]));
    CHECK(most <= slack);
}

// Products of the factors, (count, rows, cols).
Doubles products(const Doubles& left, const Doubles& right, const LowRank& how) {
    Doubles result(size(how.elements()));
    for (std::int64_t e = 0; e < how.elements(); e++) {
        const std::int64_t c = e / (how.rows * how.cols), i = e / how.cols % how.rows, j = e % how.cols;
        for (std::int64_t k = 0; k < how.rank; k++) {
            result[size(e)] += at(left, c, k, i, how.rank, how.rows) * at(right, c, k, j, how.rank, how.cols);
        }
    }
    return result;
}

}   // namespace

TEST_CASE("low rank: right factors get length 1, and a row of zeros is drawn") {
    KernelTest test;
    for (const LowRank& how : shapes) {
        Doubles given = test.random<float>(size(how.of_right()), 1e-39, 5).values();   // some are subnormal
        for (std::int64_t j = 0; j < how.cols; j++) given[size((how.rank - 1) * how.cols + j)] = 0;
        auto right = test.tensor<float>(given);
        prepare_right(right.data(), how, 17, test.stream);
        const Doubles rows = right.values();
        for (std::int64_t row = 0; row < how.count * how.rank; row++) {
            double squares = 0;
            for (std::int64_t j = 0; j < how.cols; j++) {
                const double x = rows[size(row * how.cols + j)];
                squares += x * x;
                if (row == how.rank - 1) {
                    CHECK(x == static_cast<double>(normal(17, static_cast<std::uint64_t>(row * how.cols + j))));
                }
            }
            if (row != how.rank - 1) CHECK(std::abs(squares - 1) < 1e-5);
        }
    }
}

TEST_CASE("low rank: the factors' products are those of plain loops, and what is left is the rest") {
    for (const LowRank& how : shapes) {
        INFO(how.count << " matrices of " << how.rows << " x " << how.cols << ", rank " << how.rank);
        KernelTest test;
        const auto gradient = test.random<float>(size(how.elements()), 1.0, 1);
        auto error = test.random<float>(size(how.elements()), 1.0, 2);
        Doubles sums = gradient.values(), before = error.values();
        for (std::size_t i = 0; i < sums.size(); i++) sums[i] = rounded<float>(sums[i] + before[i]);
        auto right = test.random<float>(size(how.of_right()), 1.0, 3);
        auto left = test.tensor<float>(Doubles(size(how.of_left())));
        multiply_left(left.data(), error.data(), gradient.data(), right.data(), how, test.stream);
        CHECK(error.values() == sums);
        Doubles expected(size(how.of_left()));
        for (std::int64_t e = 0; e < how.of_left(); e++) {
            const std::int64_t c = e / (how.rank * how.rows), k = e / how.rows % how.rank, i = e % how.rows;
            for (std::int64_t j = 0; j < how.cols; j++) {
                expected[size(e)] +=
                    at(sums, c, i, j, how.rows, how.cols) * at(right.values(), c, k, j, how.rank, how.cols);
            }
        }
        near(left.values(), expected, 1e-5 * static_cast<double>(how.cols));

        orthogonalize_left({{left.data(), how.count, how.rows}}, how.rank, test.stream);
        const Doubles factor = left.values();
        auto partials = test.tensor<float>(Doubles(size(right_partials(how))));
        multiply_right(right.data(), partials.data(), left.data(), error.data(), how, test.stream);
        partials.raw();
        expected.assign(size(how.of_right()), 0);
        for (std::int64_t e = 0; e < how.of_right(); e++) {
            const std::int64_t c = e / (how.rank * how.cols), k = e / how.cols % how.rank, j = e % how.cols;
            for (std::int64_t i = 0; i < how.rows; i++) {
                expected[size(e)] += at(factor, c, k, i, how.rank, how.rows) * at(sums, c, i, j, how.rows, how.cols);
            }
        }
        near(right.values(), expected, 1e-5 * std::sqrt(static_cast<double>(how.rows)));

        const Doubles product = products(factor, right.values(), how);
        subtract_products(error.data(), left.data(), right.data(), how, test.stream);
        Doubles rest = sums;
        for (std::size_t i = 0; i < rest.size(); i++) rest[i] -= product[i];
        near(error.values(), rest, 1e-5);
        // a part that begins and ends inside rows, and one beyond the end
        for (const auto& [first, n] : {std::pair<std::int64_t, std::int64_t>{0, how.elements()},
                                       {how.cols / 2, how.elements() / 2 + 1},
                                       {how.elements() - 3, 64}}) {
            auto out = test.tensor<float>(Doubles(size(n), 7));
            write_products(out.data(), first, n, left.data(), right.data(), how, test.stream);
            Doubles part(size(n), 7);
            for (std::int64_t i = 0; i < n && first + i < how.elements(); i++) part[size(i)] = product[size(first + i)];
            near(out.values(), part, 1e-5);
        }
    }
}

TEST_CASE("low rank: left factors are orthogonal, rows that others make up vanish, and NaN stays") {
    KernelTest test;
    constexpr std::int64_t rows = 600;
    constexpr int rank = 9;
    Doubles given = test.random<float>(size(2 * rank * rows), 1e-3, 8).values();
    for (std::int64_t i = 0; i < rows; i++) {
        given[size(4 * rows + i)] = rounded<float>(0.3 * given[size(i)] - 2 * given[size(2 * rows + i)]);
        given[size(6 * rows + i)] = 0;
        // nearly another row: what is left is small, and still orthogonal
        given[size(7 * rows + i)] = rounded<float>(given[size(rows + i)] + 1e-3 * given[size(7 * rows + i)]);
    }
    auto first = test.tensor<float>(given), second = test.random<float>(size(rank * 40), 1.0, 9);
    orthogonalize_left({{first.data(), 2, rows}, {second.data(), 1, 40}}, rank, test.stream);
    auto check = [](const Doubles& values, std::int64_t matrix, std::int64_t n, bool gaps) {
        for (int a = 0; a < rank; a++) {
            for (int b = 0; b <= a; b++) {
                double dot = 0;
                for (std::int64_t i = 0; i < n; i++) {
                    dot += at(values, matrix, a, i, rank, n) * at(values, matrix, b, i, rank, n);
                }
                const bool vanishes = gaps && (a == 4 || a == 6);
                CHECK(std::abs(dot - (a == b && !vanishes ? 1 : 0)) < 1e-6);
            }
        }
    };
    const Doubles factors = first.values();
    check(factors, 0, rows, true), check(factors, 1, rows, false);
    check(second.values(), 0, 40, false);

    Doubles broken(80, 1.0);
    broken[3] = std::numeric_limits<double>::infinity();
    auto factor = test.tensor<float>(broken);
    orthogonalize_left({{factor.data(), 1, 40}}, 2, test.stream);
    for (const int i : {3, 4, 44}) CHECK(std::isnan(factor.values()[size(i)]));
}

TEST_CASE("low rank: warm factors find the directions of a matrix that has no more than their rank") {
    KernelTest test;
    const LowRank how{1, 60, 50, 3};
    const Doubles left_of = random_values<float>(size(how.of_left()), 1.0, 11),
                  right_of = random_values<float>(size(how.of_right()), 1.0, 12);
    Doubles matrix = products(left_of, right_of, how);
    for (double& x : matrix) x = rounded<float>(x);
    const auto gradient = test.tensor<float>(matrix);
    auto error = test.tensor<float>(Doubles(size(how.elements()))), left = test.tensor<float>(Doubles(180)),
         right = test.tensor<float>(Doubles(150)), partials = test.tensor<float>(Doubles(size(right_partials(how))));
    prepare_right(right.data(), how, 1, test.stream);
    multiply_left(left.data(), error.data(), gradient.data(), right.data(), how, test.stream);
    orthogonalize_left({{left.data(), 1, how.rows}}, how.rank, test.stream);
    multiply_right(right.data(), partials.data(), left.data(), error.data(), how, test.stream);
    subtract_products(error.data(), left.data(), right.data(), how, test.stream);
    near(error.values(), Doubles(size(how.elements())), 1e-4);
}
