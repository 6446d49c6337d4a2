#include "llmc/kernels/global_norm.cuh"

#include <tuple>

#include "llmc/kernels/kernel_testing.h"

namespace {

template <class Grad>
struct Norm {
    std::vector<double> sum;
    GradNorm result;
};

// The norm of tensors with the given numbers of elements, one of them misaligned.
template <class Grad>
double norm_of(const std::vector<std::size_t>& counts, double scale, double max_norm, GradNorm& result,
               double* sum_bits) {
    KernelTest test;
    std::vector<TestTensor<Grad>> tensors;
    std::vector<NormRange> ranges;
    double expected = 0;
    for (std::size_t i = 0; i < counts.size(); i++) {
        Doubles values = random_values<Grad>(counts[i], scale, i);
        for (double x : values) expected += x * x;
        tensors.push_back(test.tensor<Grad>(values, i % 3));
        ranges.push_back({tensors.back().data(), static_cast<std::int64_t>(counts[i])});
    }
    NormTable table = make_norm_table(test.arena, "test/norm", ranges, test.stream);
    DeviceBuffer<double> sum = test.arena.allocate<double>("test/sum", 1);
    DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("test/norm", 1);
    sum_of_squares(sum.data(), table, false, test.stream);
    *sum_bits = sum.download(test.stream)[0];
    sum_of_squares(sum.data(), table, true, test.stream);   // a second time: twice the sum
    CHECK(sum.download(test.stream)[0] == 2 * *sum_bits);
    sum.upload(std::vector<double>{*sum_bits}, test.stream);
    finish_global_norm(norm.data(), sum.data(), nullptr, static_cast<float>(max_norm), test.stream);
    result = norm.download(test.stream)[0];
    return std::sqrt(expected);
}

}   // namespace

TEST_CASE_TEMPLATE("norm: of many tensors matches the double loop", Grad, float, bf16) {
    for (const std::vector<std::size_t>& counts :
         {std::vector<std::size_t>{1}, {0, 5, 0, 0, 3, 0}, {32768, 32769, 7, 100000}, {}}) {
        GradNorm result;
        double sum, again;
        double expected = norm_of<Grad>(counts, 0.01, 1.0, result, &sum);
        // all sums are in double: only the rounding of the norm to a float shows
        CHECK(std::abs(result.norm - expected) <= 1.001 * unit<float> * expected);
        CHECK(result.skip == 0);
        norm_of<Grad>(counts, 0.01, 1.0, result, &again);
        CHECK(sum == again);
    }
}

TEST_CASE("norm: gradients are scaled down to the largest norm, never up") {
    GradNorm result;
    double sum;
    double norm = norm_of<float>({1000}, 1.0, 2.0, result, &sum);
    CHECK(result.scale == doctest::Approx(2.0 / norm).epsilon(1e-6));
    norm_of<float>({1000}, 1.0, 1000.0, result, &sum);
    CHECK(result.scale == 1.0f);
    norm_of<float>({1000}, 1.0, 0.0, result, &sum);   // no clipping
    CHECK(result.scale == 1.0f);
}

TEST_CASE("norm: an element that is not finite, or a norm that no float holds, asks to skip the update") {
    // One large value has a norm that a float holds, though not its square; the norm of two is too large.
    struct Bad {
        double value;
        int count, skip;
    };
    for (const Bad bad : {Bad{NAN, 1, 1}, {INFINITY, 1, 1}, {3e38, 1, 0}, {3e38, 2, 1}}) {
        INFO(bad.count, " times ", bad.value);
        KernelTest test;
        Doubles values = random_values<float>(5000, 1.0, 1);
        for (int i = 0; i < bad.count; i++) values[static_cast<std::size_t>(4321 - i)] = bad.value;
        auto tensor = test.tensor<float>(values);
        NormTable table = make_norm_table(test.arena, "test/norm", {{tensor.data(), 5000}}, test.stream);
        DeviceBuffer<double> sum = test.arena.allocate<double>("test/sum", 1);
        DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("test/norm", 1);
        sum_of_squares(sum.data(), table, false, test.stream);
        finish_global_norm(norm.data(), sum.data(), nullptr, 1.0f, test.stream);
        CHECK(norm.download(test.stream)[0].skip == bad.skip);
    }
}

TEST_CASE("norm: a loss that is not finite asks to skip the update, whatever the norm") {
    for (double loss : {static_cast<double>(NAN), static_cast<double>(INFINITY), -1e39, 3.4e38,
                        0.0}) {   // a float cannot hold the third
        KernelTest test;
        DeviceBuffer<double> sum = test.arena.allocate<double>("test/sum", 1);
        DeviceBuffer<double> mean_loss = test.arena.allocate<double>("test/loss", 1);
        DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("test/norm", 1);
        sum.upload(std::vector<double>{4.0}, test.stream);
        mean_loss.upload(std::vector<double>{loss}, test.stream);
        finish_global_norm(norm.data(), sum.data(), mean_loss.data(), 1.0f, test.stream);
        const GradNorm result = norm.download(test.stream)[0];
        CHECK(result.skip == (std::isfinite(static_cast<float>(loss)) ? 0 : 1));
        CHECK(result.norm == 2.0f);
        CHECK(result.scale == 0.5f);
    }
}

TEST_CASE("norm: a norm of zero asks to skip the update if it means that there are no gradients") {
    for (const double squares : {0.0, 1e-60, 4.0}) {   // a float's norm of the second is zero, too
        for (const bool zero_is_none : {false, true}) {
            KernelTest test;
            DeviceBuffer<double> sum = test.arena.allocate<double>("test/sum", 1);
            DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("test/norm", 1);
            sum.upload(std::vector<double>{squares}, test.stream);
            finish_global_norm(norm.data(), sum.data(), nullptr, 1.0f, test.stream, {}, zero_is_none);
            CHECK(norm.download(test.stream)[0].skip == (zero_is_none && squares == 0 ? 1 : 0));
        }
    }
}

TEST_CASE("norm: replicas of local steps come to one norm and one decision, and clip each by its own") {
    struct Case {
        double own, all;
        float norm, scale;
        int skip;
    };
    for (const Case& c : {Case{16, 64, 4, 0.25f, 0},
                          {1, 64, 4, 1, 0},
                          {64, 64, 4, 0.125f, 0},
                          {1, INFINITY, INFINITY, 1, 1},
                          {1, 1e78, INFINITY, 1, 1}}) {
        KernelTest test;
        DeviceBuffer<double> sums = test.arena.allocate<double>("test/sums", 2);
        DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("test/norm", 1);
        sums.upload(std::vector<double>{c.own, c.all}, test.stream);
        finish_global_norm(norm.data(), sums.data(), nullptr, 1.0f, test.stream, {sums.data() + 1, 4});
        const GradNorm result = norm.download(test.stream)[0];
        CHECK(result.norm == c.norm);
        CHECK(result.scale == c.scale);
        CHECK(result.skip == c.skip);
    }
}
