// Shared by the tests of matmuls for sm_90a: a random problem, and the same in double precision.
#pragma once

#include <cmath>

#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/matmul/matmul_hopper.h"

// Sizes of a problem; `gap`: elements between the rows of every matrix.
struct HopperMatmulCase {
    HopperMatmulEnd end;
    bool transposed;
    int tokens, channels, depth;
    bool has_bias = true;   // false if transposed
    int gap = 0;
};

class HopperMatmulProblem {
public:
    explicit HopperMatmulProblem(const HopperMatmulCase& c)
        : case_(c),
          in_(c.tokens, c.depth, c.gap, 1, 1),
          weight_(c.transposed ? c.depth : c.channels, c.transposed ? c.channels : c.depth, c.gap,
                  1 / std::sqrt(static_cast<double>(c.depth)), 2),
          beside_(c.tokens, c.channels, c.gap, 1, 3),
          bias_(1, c.channels, 0, 1, 4) {}

    // Runs the kernel and checks every element and what lies between rows.
    void check(int width, int blocks) const {
        const Results results = run(width, blocks);
        const Results wanted = reference();
        check_close(results.out, wanted.out, wanted.out_errors, "out");
        check_close(results.beside, wanted.beside, wanted.beside_errors, "beside");
    }
    // Runs the kernel and returns its result.
    Doubles out(int width, int blocks) const { return run(width, blocks).out; }

    // Runs the kernel and returns what differs; empty if nothing does.
    std::string difference(int width, int blocks) const {
        const Results results = run(width, blocks);
        const Results wanted = reference();
        for (std::size_t i = 0; i < wanted.out.size(); i++) {
            if (!(std::abs(results.out[i] - wanted.out[i]) <= wanted.out_errors[i])) return text("out ", i);
            if (!(std::abs(results.beside[i] - wanted.beside[i]) <= wanted.beside_errors[i])) return text("beside ", i);
        }
        return "";
    }

private:
    struct Results {
        Doubles out, beside, out_errors = {}, beside_errors = {};
    };

    Results run(int width, int blocks) const {
        KernelTest test;
        const auto in = test.tensor<bf16>(in_.values), weight = test.tensor<bf16>(weight_.values),
                   bias = test.tensor<bf16>(bias_.values), beside = test.tensor<bf16>(beside_.values),
                   out = test.tensor<bf16>(Doubles(beside_.values.size(), 768.0));
        const HopperMatmul problem{case_.end,
                                   case_.transposed,
                                   case_.tokens,
                                   case_.channels,
                                   case_.depth,
                                   out.data(),
                                   beside_.stride,
                                   in.data(),
                                   in_.stride,
                                   weight.data(),
                                   weight_.stride,
                                   case_.has_bias ? bias.data() : nullptr,
                                   case_.end == HopperMatmulEnd::plain ? nullptr : beside.data()};
        REQUIRE(hopper_matmul_takes(problem));
        launch_hopper_matmul(problem, width, blocks, test.stream);
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
        return {out.values(), beside.values()};
    }

    struct Matrix {
        int stride;
        Doubles values;
        Matrix(int rows, int columns, int gap, double scale, std::uint64_t seed)
            : stride(columns + gap),
              values(random_values<bf16>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride), scale,
                                         seed)) {}
        double at(int row, int column) const {
            return values[static_cast<std::size_t>(row) * static_cast<std::size_t>(stride) +
                          static_cast<std::size_t>(column)];
        }
    };

    static double gelu(double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
    static double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

    Results reference() const {
        const std::size_t count = beside_.values.size();
        Results result{Doubles(count, 768.0), beside_.values, Doubles(count, 0), Doubles(count, 0)};
        for (int m = 0; m < case_.tokens; m++) {
            for (int n = 0; n < case_.channels; n++) {
                double sum = case_.has_bias ? bias_.at(0, n) : 0, size = std::abs(sum);
                for (int k = 0; k < case_.depth; k++) {
                    const double term = in_.at(m, k) * (case_.transposed ? weight_.at(k, n) : weight_.at(n, k));
                    sum += term, size += std::abs(term);
                }
                const auto i = static_cast<std::size_t>(m) * static_cast<std::size_t>(beside_.stride) +
                               static_cast<std::size_t>(n);
                // Each addition errs by at most two units of fp32: hardware truncates.
                double slack = 2 * (case_.depth + 3) * unit<float> * size;
                switch (case_.end) {
                    case HopperMatmulEnd::plain: break;
                    case HopperMatmulEnd::add: sum += beside_.at(m, n); break;
                    case HopperMatmulEnd::gelu:
                        result.beside[i] = sum;
                        result.beside_errors[i] = 1.01 * unit<bf16> * std::abs(sum) + slack;
                        slack = 1.2 * result.beside_errors[i] + 1e-6;   // gelu's steepest slope is 1.13
                        sum = gelu(sum);
                        break;
                    case HopperMatmulEnd::gelu_slope:
                        slack *= 1.2;
                        sum *= gelu_slope(beside_.at(m, n));
                        break;
                }
                result.out[i] = sum;
                result.out_errors[i] = 1.02 * unit<bf16> * std::abs(sum) + slack + 1e-6;
            }
        }
        return result;
    }

    HopperMatmulCase case_;
    Matrix in_, weight_, beside_, bias_;
};
