// Every row of matmul_rows, and the bias gradient, against plain double loops; and what must be refused.

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/kernels/matmul/matmul_plan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string_view>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/kernels/matmul/bias_gradient.h"

namespace {

using std::int64_t;

// A stream and an arena of a test's own.
struct Device {
    cudaStream_t stream = nullptr;
    Arena arena;
    Device() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~Device() { cudaStreamDestroy(stream); }
};

// A (rows, columns) matrix on the device whose rows are `stride` apart, filled with normal numbers, and its values as
// they are in its type.
template <class T>
struct TestMatrix {
    int rows, columns;
    int64_t stride;
    std::vector<double> values;   // with the gaps
    DeviceBuffer<T> buffer;
    cudaStream_t stream;

    TestMatrix(Device& device, int r, int c, int gap, std::uint64_t seed)
        : rows(r), columns(c), stride(c + gap), stream(device.stream) {
        std::vector<T> host(static_cast<std::size_t>(rows * stride));
        for (std::size_t i = 0; i < host.size(); i++) {
            host[i] = static_cast<T>(normal(seed, i));
            values.push_back(static_cast<double>(static_cast<float>(host[i])));
        }
        buffer = device.arena.allocate<T>("test/matrix", host.size());
        buffer.upload(host, stream);
    }
    T* data() const { return buffer.data(); }
    double at(int r, int c) const { return values[static_cast<std::size_t>(r * stride + c)]; }

    // Largest difference between the device's matrix and `expected`, which is dense; the gaps must not have changed.
    double error(const std::vector<double>& expected) const {
        std::vector<T> now = buffer.download(stream);
        double worst = 0;
        for (int r = 0; r < rows; r++) {
            for (int c = 0; c < stride; c++) {
                auto i = static_cast<std::size_t>(r * stride + c);
                double wanted = c < columns ? expected[static_cast<std::size_t>(r) * columns + c] : values[i];
                double difference = std::abs(static_cast<double>(static_cast<float>(now[i])) - wanted);
                if (!(difference <= worst)) worst = difference;   // also takes NaN
            }
        }
        return worst;
    }
};

bool on_gpu() {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    return !std::string_view(properties.name).starts_with("CPU");
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_derivative(double x) { return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6; }

// sum over k of left(i, k) right(k, j), for every (i, j) of (rows, columns)
template <class Left, class Right>
std::vector<double> product(int rows, int columns, int depth, Left left, Right right) {
    std::vector<double> result;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            double sum = 0;
            for (int k = 0; k < depth; k++) sum += left(i, k) * right(k, j);
            result.push_back(sum);
        }
    }
    return result;
}

// Rounding a result of size sqrt(depth) (times a few, for the largest of many) to the type's precision.
template <class T>
double tolerance(int depth) {
    return (sizeof(T) == 2 ? 2e-2 : 2e-5) * std::sqrt(static_cast<double>(depth)) + 1e-6;
}

// Where a product is added to bf16 numbers, cuBLASLt may round the product before it adds (seen on an H200).
template <class T>
double sum_tolerance(int depth) {
    return (sizeof(T) == 2 ? 2 : 1) * tolerance<T>(depth);
}

struct Sizes {
    int M, N, K, gap;
};
// Odd sizes and gaps; more than one tile; and the reference model's (C=48, vocabulary 97 padded to 128, 17 x 2 tokens).
// Rows of GELU's output must be apart by a multiple of 8.
constexpr Sizes all_sizes[] = {{1, 8, 8, 0},     {5, 16, 24, 8},   {33, 72, 40, 16},
                               {34, 144, 48, 0}, {34, 128, 48, 0}, {290, 264, 520, 0}};
constexpr Sizes odd_sizes[] = {{3, 7, 11, 1}, {17, 31, 29, 5}};

MatmulShape shape_of(const Sizes& s) { return {s.M, s.N, s.K, s.N + s.gap, s.K + s.gap, s.K + s.gap}; }

template <class T>
void check_forward(const Sizes& s) {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<T> out(device, s.M, s.N, s.gap, 1), in(device, s.M, s.K, s.gap, 2), weight(device, s.N, s.K, s.gap, 3),
        bias(device, 1, s.N, 0, 4);
    std::vector<double> expected = product(
        s.M, s.N, s.K, [&](int i, int k) { return in.at(i, k); }, [&](int k, int j) { return weight.at(j, k); });
    matmul.forward<T>(out.data(), in.data(), weight.data(), nullptr, shape_of(s), device.stream);
    CHECK(out.error(expected) < tolerance<T>(s.K));
    for (int i = 0; i < s.M * s.N; i++) expected[static_cast<std::size_t>(i)] += bias.at(0, i % s.N);
    matmul.forward<T>(out.data(), in.data(), weight.data(), bias.data(), shape_of(s), device.stream);
    CHECK(out.error(expected) < tolerance<T>(s.K));
    if (s.gap == 0) {
        TestMatrix<T> residual(device, s.M, s.N, 0, 6);
        std::vector<double> sum = expected;
        for (int i = 0; i < s.M * s.N; i++) sum[static_cast<std::size_t>(i)] += residual.at(i / s.N, i % s.N);
        matmul.forward_add<T>(out.data(), residual.data(), in.data(), weight.data(), bias.data(), shape_of(s),
                              device.stream);
        CHECK(out.error(sum) < sum_tolerance<T>(s.K));
        for (int i = 0; i < s.M * s.N; i++) sum[static_cast<std::size_t>(i)] -= bias.at(0, i % s.N);
        matmul.forward_add<T>(out.data(), residual.data(), in.data(), weight.data(), nullptr, shape_of(s),
                              device.stream);
        CHECK(out.error(sum) < sum_tolerance<T>(s.K));
    }
    TestMatrix<T> pre_gelu(device, s.M, s.N, s.gap, 5);
    for (const bool biased : {true, false}) {
        matmul.forward_gelu<T>(out.data(), pre_gelu.data(), in.data(), weight.data(), biased ? bias.data() : nullptr,
                               shape_of(s), device.stream);
        CHECK(pre_gelu.error(expected) < tolerance<T>(s.K));
        std::vector<double> activated = expected;
        for (double& x : activated) x = gelu(x);
        CHECK(out.error(activated) < tolerance<T>(s.K));
        for (int i = 0; i < s.M * s.N; i++) expected[static_cast<std::size_t>(i)] -= bias.at(0, i % s.N);
    }
}

template <class T>
void check_input_gradient(const Sizes& s) {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<T> dinp(device, s.M, s.K, s.gap, 1), dout(device, s.M, s.N, s.gap, 2),
        weight(device, s.N, s.K, s.gap, 3), pre_gelu(device, s.M, s.K, s.gap, 4);
    const std::vector<double> gradient = product(
        s.M, s.K, s.N, [&](int i, int k) { return dout.at(i, k); }, [&](int k, int j) { return weight.at(k, j); });
    std::vector<double> expected = gradient;
    for (int i = 0; i < s.M * s.K; i++) expected[static_cast<std::size_t>(i)] += dinp.at(i / s.K, i % s.K);
    matmul.input_gradient<T>(dinp.data(), dout.data(), weight.data(), shape_of(s), true, device.stream);
    CHECK(dinp.error(expected) < sum_tolerance<T>(s.N));
    matmul.input_gradient<T>(dinp.data(), dout.data(), weight.data(), shape_of(s), false, device.stream);
    CHECK(dinp.error(gradient) < tolerance<T>(s.N));
    for (int i = 0; i < s.M * s.K; i++) {
        expected[static_cast<std::size_t>(i)] =
            gradient[static_cast<std::size_t>(i)] * gelu_derivative(pre_gelu.at(i / s.K, i % s.K));
    }
    matmul.input_gradient_gelu<T>(dinp.data(), dout.data(), weight.data(), pre_gelu.data(), shape_of(s), device.stream);
    CHECK(dinp.error(expected) < 1.13 * tolerance<T>(s.N));   // the derivative's largest value is 1.129
}

template <class T, class G>
void check_parameter_gradients(const Sizes& s) {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<T> in(device, s.M, s.K, s.gap, 1), dout(device, s.M, s.N, s.gap, 2);
    TestMatrix<G> dweight(device, s.N, s.K, s.gap, 3), dbias(device, 1, s.N, 0, 4);
    const std::vector<double> gradient = product(
        s.N, s.K, s.M, [&](int i, int k) { return dout.at(k, i); }, [&](int k, int j) { return in.at(k, j); });
    std::vector<double> expected = gradient;
    for (int i = 0; i < s.N * s.K; i++) expected[static_cast<std::size_t>(i)] += dweight.at(i / s.K, i % s.K);
    matmul.weight_gradient<T, G>(dweight.data(), dout.data(), in.data(), shape_of(s), true, device.stream);
    CHECK(dweight.error(expected) < sum_tolerance<G>(s.M));
    matmul.weight_gradient<T, G>(dweight.data(), dout.data(), in.data(), shape_of(s), false, device.stream);
    CHECK(dweight.error(gradient) < tolerance<G>(s.M));

    const std::vector<double> sums = product(
        1, s.N, s.M, [](int, int) { return 1.0; }, [&](int k, int j) { return dout.at(k, j); });
    expected = sums;
    for (int j = 0; j < s.N; j++) expected[static_cast<std::size_t>(j)] += dbias.at(0, j);
    matmul.bias_gradient<T, G>(dbias.data(), dout.data(), shape_of(s), true, device.stream);
    CHECK(dbias.error(expected) < tolerance<G>(s.M));
    matmul.bias_gradient<T, G>(dbias.data(), dout.data(), shape_of(s), false, device.stream);
    CHECK(dbias.error(sums) < tolerance<G>(s.M));

    auto check_both = [&](bool accumulate, double times) {
        matmul.weight_and_bias_gradient<T, G>(dweight.data(), dbias.data(), dout.data(), in.data(), shape_of(s),
                                              accumulate, device.stream);
        matmul.add_bias_gradients(device.stream);
        auto scaled = [&](std::vector<double> values) {
            for (double& value : values) value *= times;
            return values;
        };
        CHECK(dweight.error(scaled(gradient)) < times * (accumulate ? sum_tolerance<G>(s.M) : tolerance<G>(s.M)));
        CHECK(dbias.error(scaled(sums)) < times * tolerance<G>(s.M));
    };
    check_both(false, 1);
    check_both(true, 2);
    check_both(true, 3);
}

template <class Check>
void for_all_sizes(Check check) {
    for (const Sizes& s : all_sizes) {
        CAPTURE(s.M);
        CAPTURE(s.N);
        CAPTURE(s.K);
        check(s);
    }
}

}   // namespace

TEST_CASE("matmul: forward, with bias, with GELU, matches double loops") {
    for_all_sizes([](const Sizes& s) { check_forward<float>(s); });
    for_all_sizes([](const Sizes& s) { check_forward<bf16>(s); });
    for (const Sizes& s : odd_sizes) check_forward<float>(s);
}

TEST_CASE("matmul: input gradient, accumulated, times the GELU's derivative, matches double loops") {
    for_all_sizes([](const Sizes& s) { check_input_gradient<float>(s); });
    for_all_sizes([](const Sizes& s) { check_input_gradient<bf16>(s); });
    for (const Sizes& s : odd_sizes) check_input_gradient<float>(s);
}

TEST_CASE("matmul: weight and bias gradients match double loops, in fp32 and bf16, overwritten and accumulated") {
    for_all_sizes([](const Sizes& s) { check_parameter_gradients<float, float>(s); });
    for_all_sizes([](const Sizes& s) { check_parameter_gradients<bf16, float>(s); });
    for_all_sizes([](const Sizes& s) { check_parameter_gradients<bf16, bf16>(s); });
    for (const Sizes& s : odd_sizes) check_parameter_gradients<float, float>(s);
}

TEST_CASE("matmul: a bias gradient over many rows is summed in blocks, each row exactly once") {
    Device device;
    Matmul matmul(device.arena);
    const int M = 10000, N = 24;
    std::vector<float> rows(static_cast<std::size_t>(M) * N);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) rows[static_cast<std::size_t>(i * N + j)] = static_cast<float>((i + j) % 7);
    }
    DeviceBuffer<float> dout = device.arena.allocate<float>("test/dout", rows.size());
    DeviceBuffer<float> dbias = device.arena.allocate<float>("test/dbias", N);
    dout.upload(rows, device.stream);
    matmul.bias_gradient<float, float>(dbias.data(), dout.data(), MatmulShape{M, N, 1}, false, device.stream);
    std::vector<float> sums = dbias.download(device.stream);
    for (int j = 0; j < N; j++) {
        float expected = 0;
        for (int i = 0; i < M; i++) expected += static_cast<float>((i + j) % 7);
        CHECK(sums[static_cast<std::size_t>(j)] == expected);
    }
}

TEST_CASE("matmul: partials of a bias gradient never need more than the workspace, and cover each row once") {
    const std::size_t workspace = MatmulOptions{}.workspace_bytes;
    for (std::size_t bytes : {workspace, workspace / 7, std::size_t{1} << 19}) {
        for (int N : {8, 768, 4 * 1600, 4 * 12288, 4 * 18432}) {
            for (int M : {1, 31, 33, 8192, 16384, 100003, 1 << 20}) {
                const BiasGradientSplits splits = bias_gradient_splits(M, N, bytes);
                CHECK(splits.count >= 1);
                CHECK(splits.count <= 256);
                CHECK(std::size_t{4} * splits.count * N <= bytes);
                CHECK(std::int64_t{splits.count} * splits.rows >= M);
                CHECK(std::int64_t{splits.count - 1} * splits.rows < M);
            }
        }
    }
    CHECK(bias_gradient_splits(16384, 4 * 12288, workspace).count == 169);   // gpt3:175B; 256 would need 48 MiB
    CHECK(bias_gradient_splits(16384, 768, workspace).count == 256);
    CHECK(bias_gradient_splits(16384, 768, 4 * 768 - 1).count == 0);
}

TEST_CASE("matmul: a bias gradient whose partials fill the workspace") {
    Device device;
    Matmul matmul(device.arena, MatmulOptions{.workspace_bytes = 1 << 14});
    const int M = 1000, N = 1200;   // room for 3 partials, where 32 would be made
    std::vector<float> rows(static_cast<std::size_t>(M) * N);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) rows[static_cast<std::size_t>(i * N + j)] = static_cast<float>((i + j) % 7);
    }
    DeviceBuffer<float> dout = device.arena.allocate<float>("test/dout", rows.size());
    DeviceBuffer<float> dbias = device.arena.allocate<float>("test/dbias", N);
    dout.upload(rows, device.stream);
    matmul.bias_gradient<float, float>(dbias.data(), dout.data(), MatmulShape{M, N, 1}, false, device.stream);
    std::vector<float> sums = dbias.download(device.stream);
    for (int j = 0; j < N; j++) {
        float expected = 0;
        for (int i = 0; i < M; i++) expected += static_cast<float>((i + j) % 7);
        CHECK(sums[static_cast<std::size_t>(j)] == expected);
    }
}

TEST_CASE("matmul: gradients of many biases that wait to be added are added once each") {
    Device device;
    Matmul matmul(device.arena, MatmulOptions{.workspace_bytes = 1 << 15});   // 1 KiB for those that wait
    const int M = 8, K = 8, sizes[] = {64, 8, 72, 128, 8, 8, 8, 8, 8, 300};   // the last has no room
    std::vector<DeviceBuffer<float>> sums;
    TestMatrix<float> in(device, M, K, 0, 1), dout(device, M, 300, 0, 2), dweight(device, 300, K, 0, 3);
    for (int step = 0; step < 3; step++) {
        for (std::size_t i = 0; i < std::size(sizes); i++) {
            if (step == 0) sums.push_back(device.arena.allocate<float>("test/dbias", 300));
            matmul.weight_and_bias_gradient<float, float>(dweight.data(), sums[i].data(), dout.data(), in.data(),
                                                          MatmulShape{M, sizes[i], K, 300}, step > 0, device.stream);
        }
        matmul.add_bias_gradients(device.stream);
    }
    matmul.add_bias_gradients(device.stream);   // none is left
    for (std::size_t i = 0; i < std::size(sizes); i++) {
        const std::vector<float> found = sums[i].download(device.stream);
        double worst = 0;
        for (int j = 0; j < sizes[i]; j++) {
            double sum = 0;
            for (int m = 0; m < M; m++) sum += 3 * dout.at(m, j);
            worst = std::max(worst, std::abs(static_cast<double>(found[static_cast<std::size_t>(j)]) - sum));
        }
        CHECK(worst < 1e-4);
    }
}

TEST_CASE("matmul: the same call twice gives the same bits") {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<bf16> in(device, 130, 264, 0, 1), weight(device, 272, 264, 0, 2);
    TestMatrix<bf16> first(device, 130, 272, 0, 3), second(device, 130, 272, 0, 4);
    MatmulShape shape{130, 272, 264};
    matmul.forward<bf16>(first.data(), in.data(), weight.data(), nullptr, shape, device.stream);
    matmul.forward<bf16>(second.data(), in.data(), weight.data(), nullptr, shape, device.stream);
    std::vector<bf16> a = first.buffer.download(device.stream), b = second.buffer.download(device.stream);
    bool same = true;
    for (std::size_t i = 0; i < a.size(); i++) same = same && static_cast<float>(a[i]) == static_cast<float>(b[i]);
    CHECK(same);
}

TEST_CASE("matmul: algorithms are listed once per problem and are taken back") {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<float> in(device, 8, 16, 0, 1), weight(device, 24, 16, 0, 2), out(device, 8, 24, 0, 3);
    MatmulShape shape{8, 24, 16};
    matmul.forward<float>(out.data(), in.data(), weight.data(), nullptr, shape, device.stream);
    matmul.forward<float>(out.data(), in.data(), weight.data(), nullptr, shape, device.stream);
    matmul.weight_gradient<float, float>(weight.data(), out.data(), in.data(), shape, false, device.stream);
    std::vector<MatmulAlgorithm> chosen = matmul.algorithms();
    REQUIRE(chosen.size() == 2);
    CHECK(chosen[0].problem < chosen[1].problem);
    CHECK(matrix(in.data(), 8, 16, 0, 1, 128) == matrix(in.data(), 8, 16, 0));   // a batch of one is no other problem
    CHECK(matrix(in.data(), 8, 16, 0, 2, 128) != matrix(in.data(), 8, 16, 0, 2, 136));

    Matmul other(device.arena);
    other.use_algorithms(chosen);
    other.forward<float>(out.data(), in.data(), weight.data(), nullptr, shape, device.stream);
    CUDA_CHECK(cudaStreamSynchronize(device.stream));
    CHECK(other.algorithms().size() == 2);
}

TEST_CASE("matmul: where cuBLASLt has no algorithm with GELU, GELU is a kernel of its own, and that is said") {
    using T = bf16;
    Device device;
    Matmul matmul(device.arena);   // rows 12 elements apart are refused
    TestMatrix<T> in(device, 4, 8, 0, 1), weight(device, 12, 8, 0, 2), bias(device, 1, 12, 0, 3),
        out(device, 4, 12, 0, 4), pre_gelu(device, 4, 12, 0, 5);
    for (int call = 0; call < 2; call++) {
        matmul.forward_gelu<T>(out.data(), pre_gelu.data(), in.data(), weight.data(), bias.data(),
                               MatmulShape{4, 12, 8}, device.stream);
    }
    std::vector<double> expected = product(
        4, 12, 8, [&](int i, int k) { return in.at(i, k); }, [&](int k, int j) { return weight.at(j, k); });
    for (int i = 0; i < 48; i++) expected[static_cast<std::size_t>(i)] += bias.at(0, i % 12);
    CHECK(pre_gelu.error(expected) < tolerance<T>(8));
    for (double& x : expected) x = gelu(x);
    CHECK(out.error(expected) < tolerance<T>(8));
    if (on_gpu() && matmul.unfused().empty()) {
        MESSAGE("skipped: this cuBLASLt has an algorithm");
        return;
    }
    REQUIRE(matmul.unfused().size() == 1);
    CHECK(matmul.unfused()[0].find("forward + bias + gelu") != std::string::npos);

    TestMatrix<T> dout(device, 4, 8, 0, 6), down(device, 8, 12, 0, 7), dinp(device, 4, 12, 0, 8);
    matmul.input_gradient_gelu<T>(dinp.data(), dout.data(), down.data(), pre_gelu.data(), MatmulShape{4, 8, 12},
                                  device.stream);
    CUDA_CHECK(cudaStreamSynchronize(device.stream));
    CHECK(matmul.unfused().size() == 2);
    for (const MatmulAlgorithm& algorithm : matmul.algorithms()) {   // only what multiplies
        CHECK(algorithm.problem.find("gelu") == std::string::npos);
    }
}

template <class T>
std::string problem_with_gelu() {
    Device device;
    Matmul matmul(device.arena);
    TestMatrix<T> in(device, 4, 8, 0, 1), weight(device, 16, 8, 0, 2), bias(device, 1, 16, 0, 3),
        out(device, 4, 16, 0, 4), pre_gelu(device, 4, 16, 0, 5);
    matmul.forward_gelu<T>(out.data(), pre_gelu.data(), in.data(), weight.data(), bias.data(), MatmulShape{4, 16, 8},
                           device.stream);
    CUDA_CHECK(cudaStreamSynchronize(device.stream));
    CHECK(matmul.unfused().empty());
    const std::vector<MatmulAlgorithm> algorithms = matmul.algorithms();
    return algorithms.size() == 1 ? algorithms[0].problem : "";
}

TEST_CASE("matmul: bf16 asks cuBLASLt for GELU, fp32 does not") {
    CHECK(problem_with_gelu<float>().starts_with("forward + bias fp32"));
    CHECK(problem_with_gelu<bf16>().starts_with("forward + bias + gelu bf16"));
}
