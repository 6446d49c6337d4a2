// Tests Matmul where cuBLASLt refuses, which only the stand-in can be told to do.

#include "llmc/cuda_on_cpu/blas/gemm.h"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/matmul/matmul.h"

namespace {

struct Refused {
    explicit Refused(cublasLtEpilogue_t epilogue) { host::refuse_epilogue(epilogue); }
    ~Refused() { host::refuse_epilogue(0); }
};

// dbias of two micro-batches, and how often a fusion was refused.
template <class T, class G>
std::pair<Doubles, std::size_t> bias_gradient_of_two() {
    KernelTest test;
    Matmul matmul(test.arena);
    const int M = 40, N = 24, K = 16;
    auto dout = test.random<T>(M * N, 1.0, 1), in = test.random<T>(M * K, 1.0, 2);
    auto dweight = test.output<G>(N * K), dbias = test.output<G>(N);
    for (bool accumulate : {false, true}) {
        matmul.weight_and_bias_gradient<T, G>(dweight.data(), dbias.data(), dout.data(), in.data(),
                                              MatmulShape{M, N, K}, accumulate, test.stream);
        matmul.add_bias_gradients(test.stream);
    }
    Doubles result = dbias.values(), expected(N, 0.0), size(N, 0.0), values = dout.values();
    for (int i = 0; i < M * N; i++) expected[i % N] += 2 * values[i], size[i % N] += 2 * std::abs(values[i]);
    check_close(result, expected, rounding_error<G>(expected, size, 16), "dbias");
    return {result, matmul.unfused().size()};
}

}   // namespace

TEST_CASE("matmul: a bias gradient that cuBLASLt does not make is a kernel of its own, and that is said") {
    CHECK(bias_gradient_of_two<float, float>().second == 0);
    CHECK(bias_gradient_of_two<bf16, float>().second == 0);
    CHECK(bias_gradient_of_two<bf16, bf16>().second == 0);
    const Refused refused(CUBLASLT_EPILOGUE_BGRADB);
    CHECK(bias_gradient_of_two<float, float>().second == 2);   // overwritten and accumulated are two problems
    CHECK(bias_gradient_of_two<bf16, float>().second == 2);
    CHECK(bias_gradient_of_two<bf16, bf16>().second == 1);   // accumulated, it is always of its own
}

namespace {

struct Offered {
    explicit Offered(int count) { host::offer_algorithms(count); }
    ~Offered() { host::offer_algorithms(1); }
};

// A timer by which the n-th algorithm that it is asked about takes seconds[n].
struct PlantedTimer {
    std::vector<double> seconds;
    std::size_t asked = 0;
    double operator()(const std::function<void()>& work, cudaStream_t) {
        work();
        return seconds.at(asked++);
    }
};

std::uint64_t taken(const Matmul& matmul) { return matmul.algorithms().at(0).words[1]; }

}   // namespace

TEST_CASE("matmul: of the algorithms that are tried the fastest is taken, once per problem") {
    const Offered offered(4);
    KernelTest test;
    const MatmulShape shape{8, 24, 16};
    auto in = test.random<float>(8 * 16, 1.0, 1), dout = test.random<float>(8 * 24, 1.0, 2);
    auto dweight = test.output<float>(24 * 16);
    PlantedTimer timer{{3, 4, 1, 2}};
    Matmul plain(test.arena), matmul(test.arena, {.tries = 16, .timer = std::ref(timer)});
    plain.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), shape, false, test.stream);
    CHECK(taken(plain) == 0);
    const std::vector<float> once = dweight.raw();
    matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), shape, false, test.stream);
    CHECK(taken(matmul) == 2);
    matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), shape, false, test.stream);
    CHECK(timer.asked == 4);
    CHECK(same_bits(dweight.raw(), once));

    // given to another, it is not tried again
    Matmul other(test.arena, {.tries = 16, .timer = std::ref(timer)});
    other.use_algorithms(matmul.algorithms());
    other.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), shape, false, test.stream);
    CHECK(taken(other) == 2);
    CHECK(timer.asked == 4);
    CUDA_CHECK(cudaStreamSynchronize(test.stream));   // before the workspaces are freed
}

TEST_CASE("matmul: an algorithm must be 2% faster than the one that was tried before it") {
    const Offered offered(4);
    KernelTest test;
    auto in = test.random<float>(8 * 16, 1.0, 1), dout = test.random<float>(8 * 24, 1.0, 2);
    auto dweight = test.output<float>(24 * 16);
    for (const auto& [seconds, best] :
         {std::pair{std::vector{1.0, 0.99, 0.981, 0.985}, 0u}, {std::vector{1.0, 0.99, 0.97, 0.96}, 2u}}) {
        PlantedTimer timer{seconds};
        Matmul matmul(test.arena, {.tries = 16, .timer = std::ref(timer)});
        matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), {8, 24, 16}, false, test.stream);
        CHECK(taken(matmul) == best);
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
    }
}

TEST_CASE("matmul: algorithms are tried until their time is over, or until it is enough") {
    const Offered offered(4);
    KernelTest test;
    auto in = test.random<float>(8 * 16, 1.0, 1), dout = test.random<float>(8 * 24, 1.0, 2);
    auto dweight = test.output<float>(24 * 16);
    PlantedTimer timer{{3, 4, 1, 2}};
    auto multiply = [&](Matmul& matmul, int M) {
        matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), {M, 24, 16}, false, test.stream);
    };
    Matmul late(test.arena, {.tries = 16, .most_seconds = 0, .timer = std::ref(timer)});
    multiply(late, 8);
    CHECK(timer.asked == 0);
    CHECK(taken(late) == 0);
    Matmul matmul(test.arena, {.tries = 16, .timer = std::ref(timer)});
    CHECK(matmul.tries_algorithms());
    multiply(matmul, 8);
    matmul.stop_trying();
    CHECK(!matmul.tries_algorithms());
    multiply(matmul, 7);
    CHECK(timer.asked == 4);
    CHECK(taken(matmul) == 0);   // the smaller problem's, whose name comes first
    CHECK(matmul.algorithms().at(1).words[1] == 2);
    CUDA_CHECK(cudaStreamSynchronize(test.stream));
}

TEST_CASE("matmul: gradients of weights can be timed first, and what is left out then is timed when it is met again") {
    const Offered offered(4);
    KernelTest test;
    const MatmulShape shape{8, 24, 16};
    auto in = test.random<float>(8 * 16, 1.0, 1), dout = test.random<float>(8 * 24, 1.0, 2),
         weight = test.random<float>(24 * 16, 1.0, 3);
    auto out = test.output<float>(8 * 24), din = test.output<float>(8 * 16), dweight = test.output<float>(24 * 16),
         dbias = test.output<float>(24);
    std::size_t asked = 0;
    auto timer = [&](const std::function<void()>& work, cudaStream_t) {
        work();
        return static_cast<double>(++asked % 4 == 3 ? 1 : 2);   // the third of four is the fastest
    };
    Matmul matmul(test.arena, {.tries = 16, .timer = timer});
    auto pass = [&] {
        matmul.forward<float>(out.data(), in.data(), weight.data(), nullptr, shape, test.stream);
        for (const bool accumulate : {false, true}) {
            matmul.input_gradient<float>(din.data(), dout.data(), weight.data(), shape, accumulate, test.stream);
            matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), shape, accumulate,
                                                 test.stream);
        }
    };
    auto timed = [&](bool of_weights) {
        int count = 0;
        for (const MatmulAlgorithm& one : matmul.algorithms()) {
            count += one.words[1] == 2 && one.problem.starts_with("weight") == of_weights;
        }
        return count;
    };
    matmul.try_weight_gradients_only(true);
    pass();
    CHECK(asked == 2 * 4);
    CHECK(timed(true) == 2);
    CHECK(timed(false) == 0);
    matmul.try_weight_gradients_only(false);
    pass();
    pass();
    CHECK(asked == 5 * 4);
    CHECK(timed(true) == 2);
    CHECK(timed(false) == 3);
    asked = 0;
    matmul.try_weight_gradients_only(true);
    matmul.weight_and_bias_gradient<float, float>(dweight.data(), dbias.data(), dout.data(), in.data(), {7, 24, 16},
                                                  false, test.stream);
    CHECK(asked == 4 + 4 + 1);   // together, and the two apart
    CUDA_CHECK(cudaStreamSynchronize(test.stream));
}

TEST_CASE("matmul: trying algorithms adds nothing to a sum but once") {
    const Offered offered(3);
    KernelTest test;
    const MatmulShape shape{8, 24, 16};
    auto in = test.random<bf16>(8 * 16, 1.0, 1), dout = test.random<bf16>(8 * 24, 1.0, 2);
    auto results = [&](int tries) {
        auto dweight = test.output<float>(24 * 16), dbias = test.output<float>(24);
        fill(dweight.data(), 24 * 16, 1.0f, test.stream);
        fill(dbias.data(), 24, 2.0f, test.stream);
        Matmul matmul(test.arena, {.tries = tries});
        for (int i = 0; i < 2; i++) {
            matmul.weight_and_bias_gradient<bf16, float>(dweight.data(), dbias.data(), dout.data(), in.data(), shape,
                                                         true, test.stream);
        }
        matmul.add_bias_gradients(test.stream);
        return std::pair{dweight.raw(), dbias.raw()};
    };
    CHECK(results(3) == results(1));
}

TEST_CASE("matmul: gradients of weight and bias are made apart where that is faster, and wherever that is known") {
    const Offered offered(2);
    KernelTest test;
    const int M = 40, N = 24, K = 16;
    auto dout = test.random<float>(M * N, 1.0, 1), in = test.random<float>(M * K, 1.0, 2);
    const auto dweight = test.arena.allocate<float>("test/dweight", N * K);   // aligned as what is tried
    auto dbias = test.output<float>(N);
    auto run = [&](Matmul& matmul) {
        matmul.weight_and_bias_gradient<float, float>(dweight.data(), dbias.data(), dout.data(), in.data(),
                                                      MatmulShape{M, N, K}, false, test.stream);
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
    };
    // together: two algorithms; apart: the product's two, within the time of both operations
    for (const auto& [apart, is_apart] : {std::pair{4.0, true}, {6.0, false}}) {
        auto seconds = [apart = apart, asked = 0](const std::function<void()>& work, cudaStream_t) mutable {
            const int mine = asked++;
            work();
            return mine == 2 ? apart : 5.0 + mine;
        };
        Matmul matmul(test.arena, {.tries = 2, .timer = seconds});
        run(matmul);
        run(matmul);
        CHECK(matmul.unfused().empty());
        const std::vector<MatmulAlgorithm> algorithms = matmul.algorithms();
        REQUIRE(algorithms.size() == 2);
        CHECK(algorithms[0].problem.starts_with("weight + bias gradient"));
        CHECK((algorithms[0] == MatmulAlgorithm{algorithms[0].problem, {}, 0}) == is_apart);

        Matmul other(test.arena);
        other.use_algorithms(algorithms);
        run(other);
        CHECK(other.algorithms() == algorithms);
        CHECK(other.refused_algorithms().empty());
    }
}

TEST_CASE("matmul: one algorithm alone is compared with two operations, of the same problem, where more may be tried") {
    KernelTest test;
    const int M = 40, N = 24, K = 16;
    auto dout = test.random<float>(M * N, 1.0, 1), in = test.random<float>(M * K, 1.0, 2);
    auto run = [&](MatmulOptions options) {
        const auto dweight = test.arena.allocate<float>("test/dweight", N * K);
        auto dbias = test.output<float>(N);
        fill(dweight.data(), N * K, 1.0f, test.stream);
        fill(dbias.data(), N, 2.0f, test.stream);
        Matmul matmul(test.arena, options);
        for (int i = 0; i < 2; i++) {
            matmul.weight_and_bias_gradient<float, float>(dweight.data(), dbias.data(), dout.data(), in.data(),
                                                          MatmulShape{M, N, K}, true, test.stream);
            matmul.add_bias_gradients(test.stream);
        }
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
        const Doubles sums = dbias.values(), values = dout.values();
        Doubles expected(N, 2.0), size(N, 2.0);
        for (int i = 0; i < M * N; i++) expected[i % N] += 2 * values[i], size[i % N] += 2 * std::abs(values[i]);
        check_close(sums, expected, rounding_error<float>(expected, size, 16), "dbias");
        return matmul.algorithms();
    };
    CHECK(run({}).size() == 1);
    PlantedTimer timer{{5, 4}};
    const std::vector<MatmulAlgorithm> algorithms = run({.tries = 2, .timer = std::ref(timer)});
    CHECK(timer.asked == 2);
    REQUIRE(algorithms.size() == 2);
    CHECK(algorithms[0] == MatmulAlgorithm{algorithms[0].problem, {}, 0});
    CHECK(algorithms[1].problem.find(" accumulated") != std::string::npos);
}

TEST_CASE("matmul: only gradients of weight and bias may be stored as made apart") {
    KernelTest test;
    auto dout = test.random<float>(8 * 24, 1.0, 1), in = test.random<float>(8 * 16, 1.0, 2);
    auto dweight = test.output<float>(24 * 16);
    auto run = [&](Matmul& matmul) {
        matmul.weight_gradient<float, float>(dweight.data(), dout.data(), in.data(), MatmulShape{8, 24, 16}, false,
                                             test.stream);
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
    };
    Matmul matmul(test.arena), other(test.arena);
    run(matmul);
    const MatmulAlgorithm apart{matmul.algorithms().at(0).problem, {}, 0};
    other.use_algorithms(std::span(&apart, 1));
    run(other);
    CHECK(other.refused_algorithms().size() == 1);
    CHECK(other.algorithms() == matmul.algorithms());
}

TEST_CASE("matmul: a residual that cuBLASLt does not add is added by a kernel of its own, and that is said") {
    struct Refused {
        Refused() { host::refuse_unaligned_addend(true); }
        ~Refused() { host::refuse_unaligned_addend(false); }
    };
    const Refused refused;
    KernelTest test;
    const int M = 40, N = 24, K = 16;
    auto in = test.random<float>(M * K, 1.0, 1), weight = test.random<float>(N * K, 1.0, 2),
         bias = test.random<float>(N, 1.0, 3), residual = test.random<float>(M * N + 1, 1.0, 4);
    const auto out = test.arena.allocate<float>("test/out", M * N);
    for (const bool has_bias : {true, false}) {
        Matmul matmul(test.arena);
        matmul.forward_add<float>(out.data(), residual.data() + 1, in.data(), weight.data(),
                                  has_bias ? bias.data() : nullptr, MatmulShape{M, N, K}, test.stream);
        const std::vector<float> sums = out.download(test.stream);
        const std::vector<std::string> said = matmul.unfused();
        REQUIRE(said.size() == 1);
        CHECK(said[0].find(text("forward", has_bias ? " + bias" : "", " fp32 -> fp32 + residual@")) !=
              std::string::npos);
        const Doubles a = in.values(), b = weight.values(), c = bias.values(), r = residual.values();
        double worst = 0;
        for (int i = 0; i < M * N; i++) {
            double sum = r[i + 1] + (has_bias ? c[i % N] : 0);
            for (int k = 0; k < K; k++) sum += a[i / N * K + k] * b[i % N * K + k];
            worst = std::max(worst, std::abs(sum - sums[static_cast<std::size_t>(i)]));
        }
        CHECK(worst < 1e-4);
    }
}

TEST_CASE("matmul: two gradients of one bias that wait are added one after the other") {
    KernelTest test;
    Matmul matmul(test.arena);
    const int M = 40, N = 24, K = 16;
    auto dout = test.random<float>(M * N, 1.0, 1), in = test.random<float>(M * K, 1.0, 2);
    auto dweight = test.output<float>(N * K), dbias = test.output<float>(N);
    fill(dweight.data(), N * K, 0.0f, test.stream);
    fill(dbias.data(), N, 2.0f, test.stream);
    auto add = [&](bool accumulate) {
        matmul.weight_and_bias_gradient<float, float>(dweight.data(), dbias.data(), dout.data(), in.data(),
                                                      MatmulShape{M, N, K}, accumulate, test.stream);
    };
    add(true);
    add(true);
    matmul.add_bias_gradients(test.stream);
    const Doubles values = dout.values();
    Doubles expected(N, 2.0), size(N, 2.0);
    for (int i = 0; i < M * N; i++) expected[i % N] += 2 * values[i], size[i % N] += 2 * std::abs(values[i]);
    check_close(dbias.values(), expected, rounding_error<float>(expected, size, 16), "dbias");

    add(true);   // waits, and is overwritten
    add(false);
    matmul.add_bias_gradients(test.stream);
    for (int j = 0; j < N; j++) expected[j] = (expected[j] - 2) / 2;
    check_close(dbias.values(), expected, rounding_error<float>(expected, size, 16), "dbias");
}

TEST_CASE("matmul: what waits lies behind a workspace of any size") {
    KernelTest test;
    const std::size_t bytes = (1 << 15) + 128;   // not in pieces of 256
    Matmul matmul(test.arena, {.workspace_bytes = bytes});
    const int M = 8, N = 8, K = 8, wide = static_cast<int>(bytes / sizeof(float));   // whose sums fill it
    auto dout = test.random<float>(M * wide, 1.0, 1), in = test.random<float>(M * K, 1.0, 2);
    auto dweight = test.output<float>(N * K), dbias = test.output<float>(N), other = test.output<float>(wide);
    fill(dweight.data(), N * K, 0.0f, test.stream);
    fill(dbias.data(), N, 0.0f, test.stream);
    matmul.weight_and_bias_gradient<float, float>(dweight.data(), dbias.data(), dout.data(), in.data(),
                                                  MatmulShape{M, N, K, wide}, true, test.stream);
    matmul.bias_gradient<float, float>(other.data(), dout.data(), MatmulShape{M, wide, K}, false, test.stream);
    matmul.add_bias_gradients(test.stream);
    const Doubles sums = other.values();
    check_close(dbias.values(), Doubles(sums.begin(), sums.begin() + N), Doubles(N, 1e-5), "dbias");
}
