#include "llmc/kernels/rows/layernorm.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

struct Reference {
    Doubles out, mean, rstd, normal;   // forward
    Doubles din, dweight, dbias;       // backward
    // Sums of the sizes of the terms. A normalised value counts as |n| + |mean| rstd: the rounding of mean grows by
    // rstd.
    Doubles din_size, dweight_size, dbias_size;
};

// `rms`: RMSNorm, which subtracts no mean; `bias` is zero then.
Reference layernorm(const Doubles& in, const Doubles& weight, const Doubles& bias, const Doubles& dout, int rows, int C,
                    bool rms = false) {
    Reference r;
    r.out.resize(in.size());
    r.normal.resize(in.size());
    r.din.resize(in.size());
    r.din_size.resize(in.size());
    r.dweight.resize(C);
    r.dbias.resize(C);
    r.dweight_size.resize(C);
    r.dbias_size.resize(C);
    for (int i = 0; i < rows; i++) {
        const double* x = in.data() + static_cast<std::size_t>(i) * C;
        double mean = 0, variance = 0;
        for (int c = 0; c < C && !rms; c++) mean += x[c] / C;
        for (int c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / C;
        double rstd = 1 / std::sqrt(variance + 1e-5);
        r.mean.push_back(mean);
        r.rstd.push_back(rstd);
        double g_mean = 0, gn_mean = 0, g_size = 0;
        for (int c = 0; c < C; c++) {
            std::size_t at = static_cast<std::size_t>(i) * C + c;
            double n = (x[c] - mean) * rstd, g = dout[at] * weight[c];
            r.normal[at] = n;
            r.out[at] = n * weight[c] + bias[c];
            if (!rms) g_mean += g / C;
            gn_mean += g * n / C;
            g_size += std::abs(g) / C;
            r.dweight[c] += dout[at] * n;
            r.dweight_size[c] += std::abs(dout[at]) * (std::abs(n) + std::abs(mean) * rstd);
            r.dbias[c] += dout[at];
            r.dbias_size[c] += std::abs(dout[at]);
        }
        for (int c = 0; c < C; c++) {
            std::size_t at = static_cast<std::size_t>(i) * C + c;
            double n = r.normal[at], g = dout[at] * weight[c];
            r.din[at] = rstd * (g - g_mean - n * gn_mean);
            double n_size = std::abs(n) + std::abs(mean) * rstd;
            r.din_size[at] = rstd * (std::abs(g) + g_size * (1 + n_size) * (1 + n_size));
        }
    }
    return r;
}

struct Shape {
    int rows, C;
};
const Shape kShapes[] = {{1, 1},    {3, 5},     {9, 8},    {5, 48},   {33, 65},   {70, 256},
                         {40, 768}, {19, 1032}, {7, 1601}, {3, 5120}, {3, 12296}, {2, 20001}};

template <class Real, class Grad>
struct Backward {
    std::vector<Real> din;
    std::vector<Grad> dweight, dbias;
};

}   // namespace

TEST_CASE("layernorm: the reference's gradients agree with central differences") {
    bool rms = false;
    SUBCASE("layer normalisation") {}
    SUBCASE("RMSNorm") { rms = true; }
    const int rows = 2, C = 7;
    Doubles in = random_values<float>(rows * C, 1.0, 1), weight = random_values<float>(C, 1.0, 2);
    Doubles bias = random_values<float>(C, 1.0, 3), dout = random_values<float>(rows * C, 1.0, 4);
    auto loss = [&](const Doubles& x, const Doubles& w, const Doubles& b) {
        Doubles out = layernorm(x, w, b, dout, rows, C, rms).out;
        double sum = 0;
        for (std::size_t i = 0; i < out.size(); i++) sum += out[i] * dout[i];
        return sum;
    };
    Reference r = layernorm(in, weight, bias, dout, rows, C, rms);
    const double h = 1e-5;
    auto slope = [&](Doubles& of, int i) {
        double kept = of[i];
        of[i] = kept + h;
        double up = loss(in, weight, bias);
        of[i] = kept - h;
        double down = loss(in, weight, bias);
        of[i] = kept;
        return (up - down) / (2 * h);
    };
    for (int i = 0; i < rows * C; i++) CHECK(r.din[i] == doctest::Approx(slope(in, i)).epsilon(1e-7));
    for (int c = 0; c < C; c++) CHECK(r.dweight[c] == doctest::Approx(slope(weight, c)).epsilon(1e-7));
    for (int c = 0; c < C; c++) CHECK(r.dbias[c] == doctest::Approx(slope(bias, c)).epsilon(1e-7));
}

TEST_CASE_TEMPLATE("layernorm: forward matches the double loop for any C and alignment", Real, float, bf16) {
    bool rms = false;
    SUBCASE("layer normalisation") {}
    SUBCASE("RMSNorm") { rms = true; }
    KernelTest test;
    for (auto [rows, C] : kShapes) {
        for (std::size_t shift : {0u, 1u}) {
            const std::size_t n = static_cast<std::size_t>(rows) * C;
            Doubles x = random_values<Real>(n, 1.5, 1), weight = random_values<Real>(C, 1.0, 2);
            Doubles bias = rms ? Doubles(C, 0.0) : random_values<Real>(C, 1.0, 3);
            for (double& value : x) value = rounded<Real>(value + 3);   // a mean that matters
            Reference r = layernorm(x, weight, bias, Doubles(n, 0.0), rows, C, rms);
            Doubles size(n);
            for (std::size_t i = 0; i < n; i++) {
                double n_size = std::abs(r.normal[i]) + std::abs(r.mean[i / C]) * r.rstd[i / C];
                size[i] = n_size * std::abs(weight[i % C]) + std::abs(bias[i % C]);
            }
            auto out = test.output<Real>(n, shift);
            auto mean = test.output<float>(rows), rstd = test.output<float>(rows);
            const auto device_bias = test.tensor<Real>(bias);
            layernorm_forward<Real>({out.data(), rms ? nullptr : mean.data(), rstd.data(), test.tensor<Real>(x).data(),
                                     test.tensor<Real>(weight).data(), rms ? nullptr : device_bias.data(), rows, C},
                                    test.stream);
            std::string what = text("C=", C);
            check_close(out.values(), r.out, rounding_error<Real>(r.out, size, 16), what);
            if (!rms)
                check_close(mean.values(), r.mean, rounding_error<float>(r.mean, Doubles(rows, 4.0), 8),
                            what + " mean");
            check_close(rstd.values(), r.rstd, rounding_error<float>(r.rstd, r.rstd, 16), what + " rstd");
        }
    }
}

TEST_CASE("layernorm: mean and rstd may be left out") {
    KernelTest test;
    auto in = test.random<bf16>(96, 1.0, 1), weight = test.random<bf16>(48, 1.0, 2),
         bias = test.random<bf16>(48, 1.0, 3);
    auto a = test.output<bf16>(96), b = test.output<bf16>(96);
    auto mean = test.output<float>(2), rstd = test.output<float>(2);
    layernorm_forward<bf16>({a.data(), mean.data(), rstd.data(), in.data(), weight.data(), bias.data(), 2, 48},
                            test.stream);
    layernorm_forward<bf16>({b.data(), nullptr, nullptr, in.data(), weight.data(), bias.data(), 2, 48}, test.stream);
    CHECK(same_bits(a.raw(), b.raw()));
}

TEST_CASE("layernorm: RMSNorm in bf16 rounds once, behind the weight, or before it too") {
    KernelTest test;
    const Doubles x = random_values<bf16>(960, 1.5, 1), weight = random_values<bf16>(96, 1.0, 2);
    const auto in = test.tensor<bf16>(x), w = test.tensor<bf16>(weight);
    auto once = test.output<bf16>(960), twice = test.output<bf16>(960);
    const auto rstd = test.output<float>(10);
    layernorm_forward<bf16>({once.data(), nullptr, rstd.data(), in.data(), w.data(), nullptr, 10, 96}, test.stream);
    layernorm_forward<bf16>({twice.data(), nullptr, nullptr, in.data(), w.data(), nullptr, 10, 96, 1e-5f, true},
                            test.stream);
    const Doubles found_once = once.values(), found_twice = twice.values(), r = rstd.values();
    int different = 0;
    for (std::size_t i = 0; i < 960; i++) {
        const float normed = static_cast<float>(x[i]) * static_cast<float>(r[i / 96]);
        REQUIRE(found_once[i] == rounded<bf16>(static_cast<double>(normed * static_cast<float>(weight[i % 96]))));
        REQUIRE(found_twice[i] == rounded<bf16>(rounded<bf16>(static_cast<double>(normed)) * weight[i % 96]));
        different += found_once[i] != found_twice[i];
    }
    CHECK(different > 100);
}

namespace {

// Runs backward and compares; returns the raw results, to be compared with a second run.
template <class Real, class Grad>
Backward<Real, Grad> check_backward(int rows, int C, bool accumulate, std::size_t shift, bool rms = false) {
    KernelTest test;
    const std::size_t n = static_cast<std::size_t>(rows) * C;
    Doubles x = random_values<Real>(n, 1.5, 1), weight = random_values<Real>(C, 1.0, 2),
            dout = random_values<Real>(n, 1.0, 3);
    Doubles din_before = random_values<Real>(n, 1.0, 4), dw_before = random_values<Grad>(C, 1.0, 5);
    Doubles db_before = random_values<Grad>(C, 1.0, 6);
    Reference r = layernorm(x, weight, Doubles(C, 0.0), dout, rows, C, rms);

    auto din = test.tensor<Real>(din_before, shift);
    auto dweight = test.tensor<Grad>(dw_before, shift), dbias = test.tensor<Grad>(db_before, shift);
    auto scratch = test.output<float>(layernorm_backward_scratch(rows, C));
    layernorm_backward<Real, Grad>({din.data(), dweight.data(), rms ? nullptr : dbias.data(), scratch.data(),
                                    test.tensor<Real>(dout).data(), test.tensor<Real>(x).data(),
                                    test.tensor<Real>(weight).data(), rms ? nullptr : test.tensor<float>(r.mean).data(),
                                    test.tensor<float>(r.rstd).data(), rows, C, accumulate, accumulate},
                                   test.stream);
    if (accumulate) {
        for (std::size_t i = 0; i < n; i++) r.din[i] += din_before[i], r.din_size[i] += std::abs(din_before[i]);
        for (int c = 0; c < C; c++) {
            r.dweight[c] += dw_before[c], r.dweight_size[c] += std::abs(dw_before[c]);
            r.dbias[c] += db_before[c], r.dbias_size[c] += std::abs(db_before[c]);
        }
    }
    std::string what = text("rows=", rows, " C=", C, " accumulate=", accumulate);
    // normalised values carry the rounding of mean (up to 4 in size) and rstd; rows are added in a tree of short sums
    check_close(din.values(), r.din, rounding_error<Real>(r.din, r.din_size, 32), what + " din");
    check_close(dweight.values(), r.dweight, rounding_error<Grad>(r.dweight, r.dweight_size, 32), what + " dweight");
    if (rms) r.dbias = db_before;   // not touched
    check_close(dbias.values(), r.dbias, rounding_error<Grad>(r.dbias, r.dbias_size, 16), what + " dbias");
    return {din.raw(), dweight.raw(), dbias.raw()};
}

}   // namespace

TEST_CASE("layernorm: backward matches the double loop") {
    for (auto [rows, C] : kShapes) {
        for (bool accumulate : {false, true}) {
            check_backward<float, float>(rows, C, accumulate, 0);
            check_backward<bf16, float>(rows, C, accumulate, 1);
            check_backward<bf16, bf16>(rows, C, accumulate, 0);
            check_backward<float, float>(rows, C, accumulate, 1, true);
            check_backward<bf16, bf16>(rows, C, accumulate, 0, true);
        }
    }
}

// About the longest rows that are kept of those that are not read in packets, which have smaller blocks, and of those
// that are.
TEST_CASE("layernorm: backward of long rows, kept and not") {
    check_backward<float, float>(3, kOddRowMaxColumns - 1, true, 0);
    check_backward<bf16, float>(3, kOddRowMaxColumns, false, 1);
    check_backward<bf16, float>(3, kOddRowMaxColumns + 1, true, 1);
    check_backward<bf16, bf16>(3, kKeptRowMaxColumns, true, 0);
    check_backward<float, float>(600, kKeptRowMaxColumns + 8, true, 0);   // a block has several rows
}

TEST_CASE("layernorm: backward with more rows than its blocks take at once") {
    check_backward<bf16, float>(264 * 8 + 37, 24, true, 0);
}

TEST_CASE("layernorm: backward gives the same bits twice") {
    auto a = check_backward<bf16, float>(123, 264, true, 0), b = check_backward<bf16, float>(123, 264, true, 0);
    CHECK(same_bits(a.din, b.din));
    CHECK(same_bits(a.dweight, b.dweight));
    CHECK(same_bits(a.dbias, b.dbias));
}
