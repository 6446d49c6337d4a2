#include "llmc/kernels/attention/cache/attention_cached.cuh"

#include "llmc/kernels/attention/attention_reference_testing.h"
#include "llmc/kernels/kernel_testing.h"

namespace {

// q, k or v of all positions, out of rows of NH heads of q and as many of k and v as there are.
Doubles unpacked(const Doubles& qkv, int part, int T, int q_row, int kv_row) {
    Doubles result;
    for (int t = 0; t < T; t++) {
        const auto from = qkv.begin() + t * (q_row + 2 * kv_row) + (part == 0 ? 0 : q_row + (part - 1) * kv_row);
        result.insert(result.end(), from, from + (part == 0 ? q_row : kv_row));
    }
    return result;
}

// The rows of a cache: keys and values of all positions.
Doubles cached(const Doubles& qkv, int T, int q_row, int kv_row) {
    Doubles result;
    for (int t = 0; t < T; t++) {
        const auto from = qkv.begin() + t * (q_row + 2 * kv_row) + q_row;
        result.insert(result.end(), from, from + 2 * kv_row);
    }
    return result;
}

}   // namespace

TEST_CASE_TEMPLATE("cached attention: the last rows are those of causal attention, however many are new", Real, float,
                   bf16) {
    struct Case {
        int T, rows, NH, HS, group = 1;
    };
    for (const Case& c : {Case{1, 1, 1, 8}, Case{5, 5, 2, 64}, Case{300, 1, 3, 64}, Case{257, 3, 2, 128},
                          Case{256, 2, 2, 80}, Case{700, 2, 1, 24}, Case{300, 2, 6, 64, 3}, Case{300, 2, 4, 256, 2}}) {
        CAPTURE(c.T);
        CAPTURE(c.HS);
        KernelTest test;
        const int row = c.NH * c.HS, kv_row = row / c.group, first = c.T - c.rows;
        const Doubles qkv = random_values<Real>(static_cast<std::size_t>(c.T) * (row + 2 * kv_row), 2.0, 5);
        auto out = test.output<Real>(static_cast<std::size_t>(c.rows) * row);
        const int token = row + 2 * kv_row;
        cached_attention<Real>(
            {out.data(), test.tensor<Real>(qkv).data() + first * token, token,
             test.tensor<Real>(cached(qkv, c.T, row, kv_row)).data(), first, c.rows, c.NH, c.HS, c.group},
            test.stream);

        const AttentionReference all = reference_attention(
            self_attention_shape(1, c.T, c.NH, c.HS, true, c.group), unpacked(qkv, 0, c.T, row, kv_row),
            unpacked(qkv, 1, c.T, row, kv_row), unpacked(qkv, 2, c.T, row, kv_row));
        const Doubles expected(all.out.begin() + first * row, all.out.end());
        // values are at most about 8 in size, scores about 30; e^s has the error of s, and of bf16's short exponential
        const double operations = sizeof(Real) == 4 ? 48 : 400;
        check_close(out.values(), expected, rounding_error<Real>(expected, Doubles(expected.size(), 8.0), operations),
                    "out");
    }
}

TEST_CASE_TEMPLATE("cached attention: a row's bits do not depend on how many are computed at once", Real, float, bf16) {
    KernelTest test;
    const int T = 290, NH = 2, HS = 64, row = NH * HS;
    const Doubles qkv = random_values<Real>(static_cast<std::size_t>(T) * 3 * row, 2.0, 6);
    auto q = test.tensor<Real>(unpacked(qkv, 0, T, row, row)), kv = test.tensor<Real>(cached(qkv, T, row, row));
    auto together = test.output<Real>(static_cast<std::size_t>(T) * row);
    auto alone = test.output<Real>(static_cast<std::size_t>(T) * row);
    cached_attention<Real>({together.data(), q.data(), row, kv.data(), 0, T, NH, HS}, test.stream);
    for (int t = 0; t < T; t++) {
        cached_attention<Real>({alone.data() + t * row, q.data() + t * row, row, kv.data(), t, 1, NH, HS}, test.stream);
    }
    CHECK(same_bits(together.raw(), alone.raw()));
}

TEST_CASE("cached attention: heads that it does not handle are refused") {
    KernelTest test;
    for (int HS : {264, 12}) {
        CHECK_THROWS_AS(cached_attention<float>({nullptr, nullptr, HS, nullptr, 0, 1, 1, HS}, test.stream), Error);
    }
}
