// The processor's matrix multiplication against plain double loops.

#include "llmc/cuda_on_cpu/blas/gemm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/cuda_on_cpu/blas/vector_math.h"
#include "llmc/cuda_on_cpu/exec/thread_pool.h"

namespace {

using std::int64_t;

// A row-major matrix of either type, rows `stride` apart, with random numbers; and its values as doubles.
struct TestMatrix {
    int64_t rows, columns, stride;
    bool is_bf16;
    std::vector<float> fp32;
    std::vector<std::uint16_t> bits;

    TestMatrix(int64_t r, int64_t c, int64_t gap, bool bf16_type, std::uint64_t seed)
        : rows(r), columns(c), stride(c + gap), is_bf16(bf16_type) {
        for (int64_t i = 0; i < rows * stride; i++) {
            float x = normal(seed, static_cast<std::uint64_t>(i));
            if (is_bf16)
                bits.push_back(host::narrow_to_bf16(x));
            else
                fp32.push_back(x);
        }
    }
    void* data() { return is_bf16 ? static_cast<void*>(bits.data()) : fp32.data(); }
    double at(int64_t r, int64_t c) const {
        auto i = static_cast<std::size_t>(r * stride + c);
        return is_bf16 ? static_cast<double>(host::widen(bits[i])) : static_cast<double>(fp32[i]);
    }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_derivative(double x) { return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6; }

struct Case {
    int64_t M, N, K, gap;
    bool a_transposed, b_transposed, input_bf16, output_bf16, accumulate;
    host::GemmEpilogue epilogue;
    host::Bf16Gemm bf16;
};

// Largest error of D, relative to the size a sum of K products of standard normal numbers has.
double error_of(const Case& c) {
    TestMatrix a(c.a_transposed ? c.K : c.M, c.a_transposed ? c.M : c.K, c.gap, c.input_bf16, 1);
    TestMatrix b(c.b_transposed ? c.N : c.K, c.b_transposed ? c.K : c.N, c.gap, c.input_bf16, 2);
    TestMatrix d(c.M, c.N, c.gap, c.output_bf16, 3), bias(1, c.N, 0, c.output_bf16, 4),
        aux(c.M, c.N, 8, c.output_bf16, 5), another(c.M, c.N, c.gap, c.output_bf16, 6),
        sums(1, c.M, 0, c.output_bf16, 7);
    const TestMatrix d_before = d, aux_before = aux;
    const bool makes_sums = c.epilogue == host::GemmEpilogue::row_sums;
    TestMatrix& added = c.epilogue == host::GemmEpilogue::bias ? another : d;
    host::Gemm g{c.M,
                 c.N,
                 c.K,
                 a.data(),
                 a.stride,
                 c.a_transposed,
                 b.data(),
                 b.stride,
                 c.b_transposed,
                 c.input_bf16,
                 d.data(),
                 d.stride,
                 c.output_bf16,
                 c.accumulate ? added.data() : nullptr,
                 c.epilogue,
                 makes_sums ? sums.data() : bias.data(),
                 aux.data(),
                 aux.stride,
                 c.bf16};
    host::gemm(g);
    double worst = 0, scale = std::sqrt(static_cast<double>(c.K));
    for (int64_t m = 0; m < c.M; m++) {
        double sum = 0;
        for (int64_t k = 0; makes_sums && k < c.K; k++) sum += a.at(k, m);
        if (makes_sums) worst = std::max(worst, std::abs(sums.at(0, m) - sum) / scale);
        for (int64_t n = 0; n < c.N; n++) {
            double expected = !c.accumulate ? 0 : &added == &d ? d_before.at(m, n) : another.at(m, n);
            for (int64_t k = 0; k < c.K; k++) {
                expected += (c.a_transposed ? a.at(k, m) : a.at(m, k)) * (c.b_transposed ? b.at(n, k) : b.at(k, n));
            }
            if (c.epilogue == host::GemmEpilogue::bias) expected += bias.at(0, n);
            if (c.epilogue == host::GemmEpilogue::gelu) {
                expected += bias.at(0, n);
                worst = std::max(worst, std::abs(aux.at(m, n) - expected) / scale);
                expected = gelu(expected);
            }
            if (c.epilogue == host::GemmEpilogue::dgelu) expected *= gelu_derivative(aux_before.at(m, n));
            worst = std::max(worst, std::abs(d.at(m, n) - expected) / scale);
        }
        for (int64_t gap = c.N; gap < d.stride; gap++) {   // bytes between rows stay as they were
            if (d.at(m, gap) != d_before.at(m, gap)) return 1e9;
        }
    }
    return worst;
}

void check_all(Case c) {
    for (int form = 0; form < 4; form++) {
        c.a_transposed = form & 1;
        c.b_transposed = form & 2;
        for (host::GemmEpilogue epilogue :
             {host::GemmEpilogue::none, host::GemmEpilogue::bias, host::GemmEpilogue::gelu, host::GemmEpilogue::dgelu,
              host::GemmEpilogue::row_sums}) {
            if (epilogue == host::GemmEpilogue::row_sums && !c.a_transposed) continue;
            c.epilogue = epilogue;
            c.accumulate = false;
            CAPTURE(form);
            CAPTURE(static_cast<int>(epilogue));
            double tolerance = c.output_bf16 ? 4e-2 : 2e-5;   // bf16 rounds results of up to about 4 sqrt(K) by 2^-9
            CHECK(error_of(c) < tolerance);
            if (epilogue == host::GemmEpilogue::gelu || epilogue == host::GemmEpilogue::dgelu) continue;
            c.accumulate = true;
            CHECK(error_of(c) < tolerance);
        }
    }
}

// Ways to multiply bf16 that this processor has.
std::vector<host::Bf16Gemm> ways_for_bf16() {
    std::vector<host::Bf16Gemm> ways = {host::Bf16Gemm::widened};
    if (host::multiplies_bf16())
        ways.push_back(host::Bf16Gemm::native);
    else
        MESSAGE("SKIPPED native bf16 matmuls: oneDNN has no bf16 instructions here (AMX or AVX512_BF16)");
    return ways;
}

}   // namespace

TEST_CASE("gemm: all forms and epilogues match double loops, in fp32, bf16 and mixed, with gaps and odd sizes") {
    for (const host::Bf16Gemm bf16 : ways_for_bf16()) {
        for (auto [input, output] : {std::pair{false, false}, {true, true}, {true, false}}) {
            if (!input && bf16 == host::Bf16Gemm::native) continue;
            std::string types = std::string(input ? "bf16 -> " : "fp32 -> ") + (output ? "bf16" : "fp32");
            CAPTURE(types);
            CAPTURE(static_cast<int>(bf16));
            check_all({1, 1, 1, 0, false, false, input, output, false, {}, bf16});
            check_all({37, 53, 19, 3, false, false, input, output, false, {}, bf16});
            check_all({8, 48, 96, 0, false, false, input, output, false, {}, bf16});
        }
    }
}

TEST_CASE("gemm: several tiles and several slices of K") {
    for (bool is_bf16 : {false, true}) {
        Case c{
            300, 530, 1100, 5, false, true, is_bf16, is_bf16, false, host::GemmEpilogue::bias, host::Bf16Gemm::widened};
        CHECK(error_of(c) < (is_bf16 ? 4e-2 : 2e-5));
        c.accumulate = true;
        CHECK(error_of(c) < (is_bf16 ? 4e-2 : 2e-5));
        c = {600, 40, 520, 0, true, false, is_bf16, false, true, host::GemmEpilogue::none, host::Bf16Gemm::widened};
        CHECK(error_of(c) < 2e-5);
        c.epilogue = host::GemmEpilogue::row_sums;
        CHECK(error_of(c) < 2e-5);
    }
}

TEST_CASE("gemm: oneDNN starts no threads of its own") {
    auto threads = [] {
        auto tasks = std::filesystem::directory_iterator("/proc/self/task");
        return std::distance(begin(tasks), end(tasks));
    };
    host::parallel_for(
        64, [](int64_t) {}, 1);   // ours have started now
    const auto before = threads();
    for (const host::Bf16Gemm bf16 : ways_for_bf16()) {
        CHECK(error_of({300, 530, 90, 0, false, true, true, true, false, host::GemmEpilogue::none, bf16}) < 4e-2);
    }
    CHECK(error_of({300, 530, 90, 0, false, true, false, false, false, host::GemmEpilogue::none, {}}) < 2e-5);
    CHECK(threads() == before);
}

TEST_CASE("gemm: the vector functions are exact to a few units in the last place") {
    for (double x = -87; x < 88; x += 0.0137) {
        double expected = std::exp(static_cast<double>(static_cast<float>(x)));
        CHECK(std::abs(host::vector_exp(static_cast<float>(x)) / expected - 1) < 3e-7);
    }
    CHECK(host::vector_exp(-std::numeric_limits<float>::infinity()) == 0.0f);
    CHECK(host::vector_exp(-1000.0f) == 0.0f);
    CHECK(host::vector_exp(0.0f) == 1.0f);
    for (double x = -12; x < 12; x += 0.0113) {
        auto f = static_cast<float>(x);
        CHECK(std::abs(host::vector_gelu(f) - gelu(f)) < 3e-7 * (1 + std::abs(x)));
        CHECK(std::abs(host::vector_gelu_derivative(f) - gelu_derivative(f)) < 1e-6);
    }
    CHECK(host::narrow_to_bf16(1.00390625f) == 0x3f80);   // halfway between two numbers: to the even one, 1.0
    CHECK(host::narrow_to_bf16(1.01171875f) == 0x3f82);   // halfway: up to the even one
    CHECK(host::narrow_to_bf16(-INFINITY) == 0xff80);
    CHECK(std::isnan(host::widen(host::narrow_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}
