// Matmul's own kernels (matmul_hopper.h), run on the models of their instructions: taken where they are the fastest,
// for every use they serve, and given to others.
#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/kernels/matmul/matmul_hopper.h"

namespace {

constexpr std::size_t widths = hopper_matmul_widths.size();

// A timer by which the last of `of` candidates is the fastest; own kernels come last.
struct LastIsFastest {
    std::size_t of, asked = 0;
    double operator()(const std::function<void()>& work, cudaStream_t) {
        work();
        return ++asked % of == 0 ? 1 : 2;
    }
};

// All products of a layer whose gradient flows back through GELU. Outputs are in `results` and `sums`.
struct Layer {
    KernelTest test;
    MatmulShape shape{40, 72, 24};
    TestTensor<bf16> in = test.random<bf16>(40 * 24, 1.0, 1), weight = test.random<bf16>(72 * 24, 0.2, 2),
                     bias = test.random<bf16>(72, 1.0, 3), residual = test.random<bf16>(40 * 72, 1.0, 4),
                     dout = test.random<bf16>(40 * 72, 1.0, 5), pre = test.random<bf16>(40 * 24, 1.0, 6),
                     bias_of_another = test.random<bf16>(72, 1.0, 7),
                     pre_of_another = test.random<bf16>(40 * 24, 1.0, 8);
    std::vector<TestTensor<bf16>> results;
    TestTensor<float> dweight = test.output<float>(72 * 24), dbias = test.output<float>(72);

    Layer() {
        for (int i = 0; i < 11; i++) results.push_back(test.output<bf16>(40 * (i < 8 ? 72 : 24)));
    }
    void run(Matmul& matmul) {
        const cudaStream_t s = test.stream;
        auto to = [&](std::size_t i) { return results[i].data(); };
        matmul.forward<bf16>(to(0), in.data(), weight.data(), nullptr, shape, s);
        matmul.forward<bf16>(to(1), in.data(), weight.data(), bias.data(), shape, s);
        matmul.forward_add<bf16>(to(2), residual.data(), in.data(), weight.data(), bias.data(), shape, s);
        matmul.forward_gelu<bf16>(to(3), to(4), in.data(), weight.data(), bias.data(), shape, s);
        // the same problems with another bias, and another pre-GELU below, as of another layer
        matmul.forward<bf16>(to(5), in.data(), weight.data(), bias_of_another.data(), shape, s);
        matmul.forward_gelu<bf16>(to(6), to(7), in.data(), weight.data(), bias_of_another.data(), shape, s);
        matmul.input_gradient<bf16>(to(8), dout.data(), weight.data(), shape, false, s);
        matmul.input_gradient<bf16>(to(8), dout.data(), weight.data(), shape, true, s);
        matmul.input_gradient_gelu<bf16>(to(9), dout.data(), weight.data(), pre.data(), shape, s);
        matmul.input_gradient_gelu<bf16>(to(10), dout.data(), weight.data(), pre_of_another.data(), shape, s);
        matmul.weight_and_bias_gradient<bf16, float>(dweight.data(), dbias.data(), dout.data(), in.data(), shape, false,
                                                     s);
        CUDA_CHECK(cudaStreamSynchronize(s));
    }
};

std::ptrdiff_t own_kernels(const std::vector<MatmulAlgorithm>& algorithms) {
    return std::ranges::count_if(algorithms, &MatmulAlgorithm::is_own_kernel);
}

}   // namespace

TEST_CASE("matmul: own kernels compute every product of activations that they are the fastest for") {
    Layer library, own;
    Matmul plain(library.test.arena);
    library.run(plain);
    CHECK(own_kernels(plain.algorithms()) == 0);

    LastIsFastest timer{1 + widths};
    Matmul matmul(own.test.arena, {.tries = 16, .own_kernels = OwnKernels::always, .timer = std::ref(timer)});
    own.run(matmul);
    // all but the gradient that is added to; gradients of weights: cuBLASLt's one algorithm, or apart
    CHECK(timer.asked == 6 * (1 + widths) + 2);
    CHECK(own_kernels(matmul.algorithms()) == 6);
    for (std::size_t i = 0; i < own.results.size(); i++) {
        const Doubles wanted = library.results[i].values();
        Doubles errors;
        for (const double x : wanted) errors.push_back(0.02 * std::abs(x) + 0.02);
        check_close(own.results[i].values(), wanted, errors, text("result ", i));
    }

    SUBCASE("given to another they are not tried again, and give the same bits") {
        Layer again;
        Matmul other(again.test.arena, {.tries = 16, .own_kernels = OwnKernels::always, .timer = std::ref(timer)});
        other.use_algorithms(matmul.algorithms());
        const std::size_t asked = timer.asked;
        again.run(other);
        CHECK(timer.asked == asked);
        CHECK(other.algorithms() == matmul.algorithms());
        for (std::size_t i = 0; i < own.results.size(); i++) {
            CHECK(same_bits(again.results[i].raw(), own.results[i].raw()));
        }
    }
    SUBCASE("where they cannot be used, that is said, and cuBLASLt computes") {
        Layer without;
        Matmul other(without.test.arena);
        other.use_algorithms(matmul.algorithms());
        without.run(other);
        CHECK(own_kernels(other.algorithms()) == 0);
        CHECK(other.refused_algorithms().size() == 6);
        for (const std::string& why : other.refused_algorithms()) CHECK(why.ends_with(": no own kernel for it here"));
        for (std::size_t i = 0; i < own.results.size(); i++) {
            CHECK(same_bits(without.results[i].raw(), library.results[i].raw()));
        }
    }
}

TEST_CASE("matmul: own kernels are not tried in fp32, nor where rows do not begin at multiples of 16 bytes") {
    KernelTest test;
    LastIsFastest timer{1};
    Matmul matmul(test.arena, {.tries = 16, .own_kernels = OwnKernels::always, .timer = std::ref(timer)});
    const auto in = test.random<float>(8 * 16, 1.0, 1), weight = test.random<float>(24 * 16, 1.0, 2);
    const auto out = test.output<float>(8 * 24);
    matmul.forward<float>(out.data(), in.data(), weight.data(), nullptr, {8, 24, 16}, test.stream);
    for (const auto [N, K, shift] : {std::array{24, 20, 0}, {20, 16, 0}, {24, 16, 4}}) {
        const auto n = static_cast<std::size_t>(N), k = static_cast<std::size_t>(K);
        const auto from = test.random<bf16>(8 * k, 1.0, 1, static_cast<std::size_t>(shift)),
                   by = test.random<bf16>(n * k, 1.0, 2);
        const auto to = test.output<bf16>(8 * n);
        matmul.forward<bf16>(to.data(), from.data(), by.data(), nullptr, {8, N, K}, test.stream);
    }
    CUDA_CHECK(cudaStreamSynchronize(test.stream));
    CHECK(timer.asked == 0);
    CHECK(own_kernels(matmul.algorithms()) == 0);
}

TEST_CASE(
    "matmul: own kernels are for GPUs of sm_90: a CPU, which runs models of their instructions, does not use them") {
    CHECK(sm90_matmul_refusal() == "they are for GPUs");
}
