#include "llmc/kernels/rows/shared_rms.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

constexpr int rows = 150, ranks = 2;   // more rows than parts
constexpr float epsilon = 1e-2f;

// Columns of all ranks and what the norm makes of them, in double.
struct Norm {
    int C;
    Doubles x, weight, dy, out{}, dx{}, dweight{};

    void compute() {
        out = dx = x;
        dweight.assign(static_cast<std::size_t>(C), 0.0);
        for (int row = 0; row < rows; row++) {
            const std::size_t first = static_cast<std::size_t>(row * C);
            double squares = 0, products = 0;
            for (int c = 0; c < C; c++) squares += x[first + c] * x[first + c] / C;
            const double r = 1 / std::sqrt(squares + static_cast<double>(epsilon));
            for (int c = 0; c < C; c++) products += dy[first + c] * weight[c] * x[first + c] * r / C;
            for (int c = 0; c < C; c++) {
                out[first + c] = x[first + c] * r * weight[c];
                dx[first + c] = r * (weight[c] * dy[first + c] - x[first + c] * r * products);
                dweight[c] += dy[first + c] * x[first + c] * r;
            }
        }
    }
};

// Columns [first, first + count) of rows of C, with `padding` columns behind each.
Doubles columns(const Doubles& all, int C, int first, int count, int padding) {
    Doubles part;
    for (std::size_t row = 0; row < all.size() / C; row++) {
        for (int c = 0; c < count + padding; c++) part.push_back(c < count ? all[row * C + first + c] : 777.0);
    }
    return part;
}

}   // namespace

TEST_CASE_TEMPLATE("shared RMSNorm: ranks that add up their sums have the norm of whole rows, both ways", Real, float,
                   bf16) {
    for (const int width : {8, 48, 1032}) {
        const int C = ranks * width, padding = 16;
        const auto n = static_cast<std::size_t>(rows * C);
        Norm norm{C, random_values<Real>(n, 1.5, 1), random_values<Real>(C, 1.0, 2), random_values<Real>(n, 1.0, 3)};
        norm.compute();
        Doubles squares(rows, 0.0), products(rows, 0.0);
        KernelTest test;
        for (const bool sums_known : {false, true}) {
            for (int rank = 0; rank < ranks; rank++) {
                auto part = [&](const Doubles& all, int behind) {
                    return columns(all, C, rank * width, width, behind);
                };
                auto x = test.tensor<Real>(part(norm.x, padding)), dy = test.tensor<Real>(part(norm.dy, padding));
                auto weight = test.tensor<Real>(part(norm.weight, 0));
                auto kept = test.output<Real>(static_cast<std::size_t>(rows * width));
                auto sums = test.output<float>(rows), rstd = test.output<float>(rows);
                auto dweight = test.tensor<float>(Doubles(width, 1.0));
                auto scratch = test.output<float>(shared_rms_scratch(rows, width));
                const SharedRows<Real> own{x.data(), width + padding, rows, width, ranks},
                    gradient{dy.data(), width + padding, rows, width, ranks};
                shared_rms_begin(sums.data(), kept.data(), own, test.stream);
                if (!sums_known) {
                    const Doubles found = sums.values();
                    for (int row = 0; row < rows; row++) squares[row] += found[row];
                    continue;
                }
                auto all_squares = test.tensor<float>(squares);
                shared_rms_finish<Real>(own, rstd.data(), kept.data(), weight.data(), all_squares.data(), epsilon,
                                        test.stream);
                const std::string what = text("width ", width, ", rank ", rank);
                auto size_of = [](Doubles values, double floor) {
                    for (double& value : values) value = std::abs(value) + floor;
                    return values;
                };
                const Doubles expected = part(norm.out, padding);
                check_close(x.values(), expected, rounding_error<Real>(expected, size_of(expected, 0.0), 32), what);
                shared_rms_backward_begin<Real>(sums.data(), dweight.data(), scratch.data(), gradient, kept.data(),
                                                weight.data(), rstd.data(), true, test.stream);
                Doubles dw = part(norm.dweight, 0);
                for (double& value : dw) value += 1;
                check_close(dweight.values(), dw, rounding_error<float>(dw, Doubles(width, 1.0 * rows), 64), what);
                Doubles of_all(rows, 0.0);   // sums of products, and this rank's
                for (int row = 0; row < rows; row++) {
                    const double r = 1 / std::sqrt(squares[row] / C + static_cast<double>(epsilon));
                    products[row] = 0;
                    for (int c = 0; c < C; c++) {
                        const auto at = static_cast<std::size_t>(row * C + c);
                        const double product = norm.dy[at] * norm.weight[c] * norm.x[at] * r;
                        of_all[row] += product;
                        if (c / width == rank) products[row] += product;
                    }
                }
                check_close(sums.values(), products, rounding_error<float>(products, Doubles(rows, 2.0 * width), 32),
                            what);
                auto all_products = test.tensor<float>(of_all);
                shared_rms_backward_finish<Real>(gradient, kept.data(), weight.data(), rstd.data(), all_products.data(),
                                                 test.stream);
                const Doubles dx = part(norm.dx, padding);
                check_close(dy.values(), dx, rounding_error<Real>(dx, size_of(dx, 4.0), 32), what);
            }
        }
    }
}
