#include "llmc/kernels/rows/classifier.cuh"

#include <algorithm>
#include <numeric>

#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/operation_timer.h"

namespace {

struct CrossEntropy {
    double loss = 0;
    Doubles probabilities;
};

CrossEntropy cross_entropy(const double* logits, int V, int target) {
    double max = *std::max_element(logits, logits + V), sum = 0;
    for (int v = 0; v < V; v++) sum += std::exp(logits[v] - max);
    CrossEntropy result;
    for (int v = 0; v < V; v++) result.probabilities.push_back(std::exp(logits[v] - max) / sum);
    if (target >= 0) result.loss = std::log(sum) + max - logits[target];
    return result;
}

// How many units the exponential of a difference of logits may err: twice (numerator, sum) what its argument weighs.
double exp_operations(double spread) { return 8 + 4 * spread; }

std::vector<int> random_targets(int rows, int V) {
    std::vector<int> targets(rows);
    for (int i = 0; i < rows; i++) targets[i] = static_cast<int>(mix64(i + 99) % V);
    targets[0] = V - 1;
    if (rows > 2) targets[1] = 0, targets[2] = -1;   // an ignored row
    return targets;
}

template <class Real>
void check_classifier(int rows, int V, int Vp, double scale, std::size_t shift) {
    KernelTest test;
    const std::size_t n = static_cast<std::size_t>(rows) * Vp;
    const float dloss = 1.0f / 64;
    Doubles logits = random_values<Real>(n, scale, 1);
    for (std::size_t i = 0; i < n; i++) {
        if (static_cast<int>(i % Vp) >= V) logits[i] = 1000;   // padding must not count, whatever it holds
    }
    std::vector<int> targets = random_targets(rows, V);
    DeviceBuffer<int> device_targets = test.ints(targets);
    auto device = test.tensor<Real>(logits, shift);
    auto losses = test.output<float>(rows), losses_only = test.output<float>(rows);

    Doubles loss(rows), loss_size(rows), gradient(n), gradient_size(n);
    const double spread = 12 * scale;   // nearly all normal numbers lie within six deviations
    for (int i = 0; i < rows; i++) {
        CrossEntropy r = cross_entropy(logits.data() + static_cast<std::size_t>(i) * Vp, V, targets[i]);
        loss[i] = r.loss;
        loss_size[i] = targets[i] < 0 ? 0 : spread + std::log(V);
        for (int v = 0; v < V; v++) {
            std::size_t at = static_cast<std::size_t>(i) * Vp + v;
            double is_target = v == targets[i];
            gradient[at] = targets[i] < 0 ? 0 : (r.probabilities[v] - is_target) * dloss;
            gradient_size[at] = (r.probabilities[v] + is_target) * dloss;
        }
    }
    std::string what = text("rows=", rows, " V=", V, " Vp=", Vp, " scale=", scale);

    Classifier<Real> args{device.data(), losses_only.data(),    device_targets.data(), rows, V, Vp,
                          dloss,         ClassifierOutput::loss};
    fused_classifier(args, test.stream);
    CHECK(device.values() == logits);   // untouched

    args.losses = losses.data();
    args.output = ClassifierOutput::loss_and_gradient;
    fused_classifier(args, test.stream);
    CHECK(same_bits(losses.raw(), losses_only.raw()));
    check_close(losses.values(), loss, rounding_error<float>(loss, loss_size, 8), what + " loss");
    Doubles result = device.values();
    check_close(result, gradient, rounding_error<Real>(gradient, gradient_size, exp_operations(spread)),
                what + " gradient");

    for (int i = 0; i < rows; i++) {
        const double* row = result.data() + static_cast<std::size_t>(i) * Vp;
        double sum = std::accumulate(row, row + V, 0.0), size = 0;
        for (int v = 0; v < V; v++) size += std::abs(row[v]);
        CHECK(std::abs(sum) <= (unit<Real> + exp_operations(spread) * unit<float>)*size);
        CHECK(std::all_of(row + V, row + Vp, [](double x) { return x == 0.0; }));
        if (targets[i] < 0) CHECK(std::all_of(row, row + Vp, [](double x) { return x == 0.0; }));
    }
}

}   // namespace

TEST_CASE("classifier: losses and gradients match double loops") {
    for (double scale : {1.0, 6.0}) {
        check_classifier<float>(1, 1, 1, scale, 0);
        check_classifier<float>(5, 97, 128, scale, 0);
        check_classifier<bf16>(5, 97, 128, scale, 0);
        check_classifier<bf16>(7, 97, 97, scale, 1);
        check_classifier<float>(4, 1003, 1003, scale, 1);
        check_classifier<bf16>(9, 5001, 5120, scale, 0);
    }
    check_classifier<bf16>(3, 50257, 50304, 3.0, 0);
    check_classifier<float>(3, 50257, 50304, 3.0, 0);
    check_classifier<bf16>(3, 50257, 50304, 3.0, 1);
    check_classifier<bf16>(3, 119000, 120000, 3.0, 0);   // too long to be kept in shared memory
    // more or fewer pieces than a thread copies ahead; an end inside a piece; padding of whole pieces of every thread
    check_classifier<bf16>(4, 50299, 50304, 3.0, 0);
    check_classifier<bf16>(4, 8192, 8192, 3.0, 0);
    check_classifier<bf16>(4, 8195, 24576, 3.0, 0);
    check_classifier<float>(4, 20001, 20008, 3.0, 0);
}

TEST_CASE("classifier: every column can be the target") {
    KernelTest test;
    const int V = 509, Vp = 512;
    const auto run = [&]<class Real>(Real, std::size_t shift) {
        auto device = test.tensor<Real>(random_values<Real>(std::size_t{V} * Vp, 1.0, 7), shift);
        auto losses = test.output<float>(V);
        std::vector<int> targets(V);
        std::iota(targets.begin(), targets.end(), 0);
        const DeviceBuffer<int> device_targets = test.ints(targets);
        fused_classifier<Real>(
            {device.data(), losses.data(), device_targets.data(), V, V, Vp, 1.0f, ClassifierOutput::loss_and_gradient},
            test.stream);
        const Doubles gradient = device.values();
        for (int row = 0; row < V; row++) {
            for (int c = 0; c < Vp; c++) {   // the target's is negative, no other
                const double value = gradient[static_cast<std::size_t>(row) * Vp + static_cast<std::size_t>(c)];
                REQUIRE((c == row ? value < 0 : c < V ? value > 0 : value == 0));
            }
        }
    };
    for (std::size_t shift : {0u, 1u}) run(bf16(), shift), run(float(), shift);
}

TEST_CASE("classifier: a row is read once where two blocks of a multiprocessor can keep theirs") {
    KernelTest test;
    const auto bytes_per_row = [&]<class Real>(Real, int Vp, std::size_t shift) {
        auto device = test.tensor<Real>(Doubles(2 * static_cast<std::size_t>(Vp)), shift);
        auto losses = test.output<float>(2);
        const DeviceBuffer<int> targets = test.ints({0, 1});
        OperationTimer timer(test.stream);
        fused_classifier<Real>(
            {device.data(), losses.data(), targets.data(), 2, Vp, Vp, 1.0f, ClassifierOutput::loss_and_gradient},
            test.stream);
        return timer.totals().at(0).bytes / 2 - 8;
    };
    const int most = (114 * 1024 - 2048) / 2;   // half of 228 KiB for each block
    CHECK(bytes_per_row(bf16(), 50304, 0) == 2 * 2 * 50304);
    CHECK(bytes_per_row(bf16(), most, 0) == 2 * 2 * most);
    CHECK(bytes_per_row(bf16(), most + 8, 0) == 3 * 2 * (most + 8));
    CHECK(bytes_per_row(bf16(), 50304, 1) == 3 * 2 * 50304);   // not in packets
    CHECK(bytes_per_row(float(), 50304, 0) == 3 * 4 * 50304);
}

TEST_CASE_TEMPLATE("classifier: huge logits stay finite, and not-a-number shows in the loss", Real, float, bf16) {
    KernelTest test;
    const int V = 16;
    Doubles logits(3 * V, 0.0);
    logits[3] = 30000;         // row 0: certain and right
    logits[V + 5] = 30000;     // row 1: certain and wrong
    logits[2 * V + 1] = NAN;   // row 2
    for (int i = 0; i < 3 * V; i++) logits[i] = rounded<Real>(logits[i]);
    DeviceBuffer<int> targets = test.ints({3, 3, 3});
    auto device = test.tensor<Real>(logits);
    auto losses = test.output<float>(3);
    fused_classifier<Real>(
        {device.data(), losses.data(), targets.data(), 3, V, V, 1.0f, ClassifierOutput::loss_and_gradient},
        test.stream);
    Doubles loss = losses.values(), gradient = device.values();
    CHECK(loss[0] == 0.0);
    CHECK(loss[1] == logits[V + 5]);
    CHECK(std::isnan(loss[2]));
    CHECK(gradient[V + 5] == 1.0);
    CHECK(gradient[V + 3] == -1.0);
}

TEST_CASE("classifier: a minus-infinite logit is impossible, not an error") {
    KernelTest test;
    Doubles logits(16, 1.0);
    for (int i = 0; i < 9; i++) logits[i] = -INFINITY;
    auto device = test.tensor<float>(logits);
    auto losses = test.output<float>(1);
    DeviceBuffer<int> targets = test.ints({12});
    fused_classifier<float>(
        {device.data(), losses.data(), targets.data(), 1, 16, 16, 1.0f, ClassifierOutput::loss_and_gradient},
        test.stream);
    CHECK(losses.values()[0] == doctest::Approx(std::log(7.0)).epsilon(1e-6));
    CHECK(device.values()[0] == 0.0);
}

TEST_CASE("classifier: the sum of losses is scaled and may accumulate") {
    KernelTest test;
    for (int n : {0, 1, 255, 1000}) {
        Doubles losses = random_values<float>(n, 1.0, 3);
        double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
        auto device = test.tensor<float>(losses);
        const DeviceBuffer<double> total = test.arena.allocate<double>("test/total", 1);
        total.upload(std::vector<double>{5.0}, test.stream);
        sum_losses(total.data(), device.data(), n, 0.25f, true, test.stream);
        CHECK(total.download(test.stream)[0] == doctest::Approx(5 + 0.25 * sum).epsilon(1e-14));
        sum_losses(total.data(), device.data(), n, 0.25f, false, test.stream);
        CHECK(total.download(test.stream)[0] == doctest::Approx(0.25 * sum).epsilon(1e-14));
    }
}
