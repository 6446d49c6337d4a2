#include "llmc/kernels/attention/attention_testing.h"

#include "llmc/base/error.h"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

template <class T, class O = T>
void check_own(const AttentionShape& shape, Layout layout) {
    check_attention<T, O>(own_attention_forward<T, O>, own_attention_backward<T, O>, shape, layout);
}

// out and lse of two key blocks as one: each block weighs exp(lse of the block - lse of both).
AttentionReference merged(const AttentionShape& shape, const AttentionReference& a, const AttentionReference& b) {
    AttentionReference result = a;
    for (int batch = 0; batch < shape.B; batch++)
        for (int h = 0; h < shape.NH; h++)
            for (int i = 0; i < shape.Tq; i++) {
                std::size_t statistic = (static_cast<std::size_t>(batch) * shape.NH + h) * shape.Tq + i;
                double largest = std::max(a.lse[statistic], b.lse[statistic]);
                double lse =
                    largest + std::log(std::exp(a.lse[statistic] - largest) + std::exp(b.lse[statistic] - largest));
                result.lse[statistic] = lse;
                std::size_t row = attention_reference::row(shape, batch, i, h);
                for (int c = 0; c < shape.HS; c++) {
                    result.out[row + c] = a.out[row + c] * std::exp(a.lse[statistic] - lse) +
                                          b.out[row + c] * std::exp(b.lse[statistic] - lse);
                }
            }
    return result;
}

// Tokens first .. first + count of a (B, T, NH, HS) tensor.
std::vector<double> tokens_of(const std::vector<double>& all, const AttentionShape& shape, int tokens, int first,
                              int count) {
    std::vector<double> part;
    std::size_t token = static_cast<std::size_t>(shape.NH) * shape.HS;
    for (int b = 0; b < shape.B; b++) {
        auto begin = all.begin() + static_cast<std::ptrdiff_t>((static_cast<std::size_t>(b) * tokens + first) * token);
        part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(count * token));
    }
    return part;
}

}   // namespace

TEST_CASE_TEMPLATE("attention: every head size matches double precision", T, float, bf16) {
    for (int HS : {8, 16, 24, 32, 48, 64, 80, 96, 128}) check_own<T>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
}

// For compute-sanitizer too, which is slow (gpu_check.sh): several tiles through every ring of buffers, two head sizes.
TEST_CASE("attention: a small case of bf16, longer than the pipelines") {
    check_own<bf16>(shape_of(1, 1, 210, 210, 64, true), Layout::packed);
    check_own<bf16>(shape_of(1, 1, 150, 150, 128, true), Layout::packed);
}

TEST_CASE_TEMPLATE("attention: every length matches, whole tiles or not", T, float, bf16) {
    for (int tokens : {1, 2, 17, 63, 64, 65, 128, 200})
        check_own<T>(shape_of(1, 1, tokens, tokens, 64, true), Layout::packed);
    for (int tokens : {1, 33, 64, 130}) check_own<T>(shape_of(1, 1, tokens, tokens, 96, true), Layout::packed);
}

TEST_CASE_TEMPLATE("attention: full attention, keys and queries of different counts", T, float, bf16) {
    for (auto [Tq, Tk] : {std::pair{5, 100}, {100, 5}, {64, 96}, {70, 70}}) {
        check_own<T>(shape_of(1, 2, Tq, Tk, 64, false), Layout::head_major);
        check_own<T>(shape_of(1, 1, Tq, Tk, 128, false), Layout::head_major);
    }
}

TEST_CASE_TEMPLATE("attention: causal with offsets, including rows that see nothing", T, float, bf16) {
    std::int64_t far = std::int64_t{1} << 40;
    for (auto [q0, k0] :
         {std::pair<std::int64_t, std::int64_t>{64, 0}, {0, 10}, {7, 3}, {far, far}, {far + 30, far + 40}}) {
        check_own<T>(shape_of(1, 2, 70, 90, 32, true, q0, k0), Layout::spaced);
        check_own<T>(shape_of(1, 1, 90, 70, 96, true, q0, k0), Layout::spaced);
    }
}

TEST_CASE_TEMPLATE("attention: every layout and several batches and heads", T, float, bf16) {
    for (Layout layout : {Layout::packed, Layout::head_major, Layout::spaced}) {
        check_own<T>(shape_of(3, 3, 17, 17, 16, true), layout);
        check_own<T>(shape_of(2, 3, 40, 40, 80, true), layout);
    }
}

TEST_CASE_TEMPLATE("attention: heads of queries share heads of keys and values", T, float, bf16) {
    for (int group : {2, 4}) {
        for (int HS : {32, 64, 128}) {
            AttentionShape shape = self_attention_shape(2, 150, 4, HS, true, group);
            check_own<T>(shape, HS == 64 ? Layout::spaced : Layout::packed);
            shape.Tk = 70, shape.causal = false;
            check_own<T>(shape, Layout::head_major);
        }
    }
    check_own<T>(self_attention_shape(1, 40, 6, 24, true, 3), Layout::packed);
    AttentionShape unseen = self_attention_shape(1, 40, 2, 64, true, 2);
    unseen.k0 = 20;   // queries that see nothing, keys that nobody sees
    check_own<T>(unseen, Layout::spaced);
}

TEST_CASE_TEMPLATE("attention: heads of more than 128 channels", T, float, bf16) {
    for (int HS : {136, 200, 256}) check_own<T>(self_attention_shape(1, 70, 2, HS), Layout::packed);
    check_own<T>(shape_of(1, 1, 40, 100, 192, false), Layout::spaced);
    check_own<T>(self_attention_shape(2, 100, 4, 256, true, 2), Layout::spaced);
    AttentionShape unseen = self_attention_shape(1, 40, 2, 256, true, 2);
    unseen.k0 = 20;   // queries that see nothing, keys that nobody sees
    check_own<T>(unseen, Layout::head_major);
}

TEST_CASE_TEMPLATE("attention: documents see only themselves", T, float, bf16) {
    check_documents([](const AttentionShape& shape) { check_own<T>(shape, Layout::packed); });
}

TEST_CASE("attention: documents see only themselves, bf16 on fp32 multiply-adds") {
    const bool before = uses_tensor_cores();
    use_tensor_cores(false);
    check_documents([](const AttentionShape& shape) { check_own<bf16>(shape, Layout::packed); });
    use_tensor_cores(before);
}

TEST_CASE_TEMPLATE("attention: no gradient crosses from one document to another", T, float, bf16) {
    check_no_gradient_crosses<T>(own_attention_forward<T, T>, own_attention_backward<T, T>);
}

TEST_CASE_TEMPLATE("attention: one document, masked, gives the same bits", T, float, bf16) {
    check_one_document<T>(own_attention_forward<T, T>, own_attention_backward<T, T>);
}

TEST_CASE("attention: bf16 inputs with fp32 results") {
    check_own<bf16, float>(self_attention_shape(1, 70, 4, 248, true, 2), Layout::packed);
    check_own<bf16, float>(self_attention_shape(1, 70, 4, 64, true, 2), Layout::packed);
    check_own<bf16, float>(shape_of(2, 2, 70, 70, 64, true), Layout::packed);
    check_own<bf16, float>(shape_of(1, 2, 50, 90, 128, false), Layout::spaced);
    check_documents([](const AttentionShape& shape) { check_own<bf16, float>(shape, Layout::packed); });
}

TEST_CASE_TEMPLATE("attention: queries that see no key give zeros and lse -infinity", T, float, bf16) {
    AttentionShape before = shape_of(1, 2, 70, 66, 64, true, 0, 1000);   // every key lies in the future
    AttentionInputs inputs = random_inputs<T>(before);
    AttentionReference found = run_forward<T, T>(own_attention_forward<T, T>, before, Layout::packed, inputs);
    for (double value : found.out) CHECK(value == 0.0);
    for (double value : found.lse) CHECK(value == -INFINITY);
    AttentionReference gradients =
        run_backward<T, T>(own_attention_backward<T, T>, before, Layout::packed, inputs, found);
    for (const auto& gradient : {gradients.dq, gradients.dk, gradients.dv})
        for (double value : gradient) CHECK(value == 0.0);
}

TEST_CASE("attention: large scores neither overflow nor lose the sum") {
    AttentionShape shape = shape_of(1, 1, 70, 70, 64, true);
    AttentionInputs inputs = random_inputs<float>(shape);
    for (double& value : inputs.q)
        value *= 100;   // scores of several hundred: exp overflows without the running maximum
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v);
    AttentionReference found =
        run_forward<float, float>(own_attention_forward<float, float>, shape, Layout::packed, inputs);
    CHECK(relative_error(found.out, expected.out) < 1e-4);
    CHECK(lse_error(found.lse, expected.lse) < 1e-3);
}

TEST_CASE_TEMPLATE("attention: two key blocks merged by lse equal one", T, float, bf16) {
    const int tokens = 100, cut = 60;
    AttentionShape whole = shape_of(1, 2, tokens, tokens, 64, true);
    AttentionShape left = shape_of(1, 2, tokens, cut, 64, true, 0, 0);
    AttentionShape right = shape_of(1, 2, tokens, tokens - cut, 64, true, 0, cut);
    AttentionInputs all = random_inputs<T>(whole);
    AttentionInputs first{all.q, tokens_of(all.k, whole, tokens, 0, cut), tokens_of(all.v, whole, tokens, 0, cut),
                          all.dout};
    AttentionInputs second{all.q, tokens_of(all.k, whole, tokens, cut, tokens - cut),
                           tokens_of(all.v, whole, tokens, cut, tokens - cut), all.dout};
    AttentionReference expected = reference_attention(whole, all.q, all.k, all.v, all.dout);

    auto forward = own_attention_forward<T, float>;
    AttentionReference both = merged(whole, run_forward<T, float>(forward, left, Layout::spaced, first),
                                     run_forward<T, float>(forward, right, Layout::spaced, second));
    AttentionTolerance tolerance = attention_tolerance<T>();
    CHECK(relative_error(both.out, expected.out) < tolerance.out);
    CHECK(lse_error(both.lse, expected.lse) < tolerance.lse);

    auto backward = own_attention_backward<T, float>;
    AttentionReference a = run_backward<T, float>(backward, left, Layout::spaced, first, both);
    AttentionReference b = run_backward<T, float>(backward, right, Layout::spaced, second, both);
    for (std::size_t i = 0; i < a.dq.size(); i++) a.dq[i] += b.dq[i];
    CHECK(relative_error(a.dq, expected.dq) < tolerance.gradient);
    CHECK(relative_error(a.dk, tokens_of(expected.dk, whole, tokens, 0, cut)) < tolerance.gradient);
    CHECK(relative_error(a.dv, tokens_of(expected.dv, whole, tokens, 0, cut)) < tolerance.gradient);
    CHECK(relative_error(b.dk, tokens_of(expected.dk, whole, tokens, cut, tokens - cut)) < tolerance.gradient);
    CHECK(relative_error(b.dv, tokens_of(expected.dv, whole, tokens, cut, tokens - cut)) < tolerance.gradient);
}

TEST_CASE_TEMPLATE("attention: two runs are bit-identical", T, float, bf16) {
    AttentionShape shape = shape_of(2, 2, 130, 130, 64, true);
    AttentionInputs inputs = random_inputs<T>(shape);
    AttentionReference once = run_forward<T, T>(own_attention_forward<T, T>, shape, Layout::packed, inputs);
    AttentionReference twice = run_forward<T, T>(own_attention_forward<T, T>, shape, Layout::packed, inputs);
    CHECK(once.out == twice.out);
    CHECK(once.lse == twice.lse);
    AttentionReference a = run_backward<T, T>(own_attention_backward<T, T>, shape, Layout::packed, inputs, once);
    AttentionReference b = run_backward<T, T>(own_attention_backward<T, T>, shape, Layout::packed, inputs, once);
    CHECK(a.dq == b.dq);
    CHECK(a.dk == b.dk);
    CHECK(a.dv == b.dv);
}

TEST_CASE("attention: sizes and strides that kernels cannot read are refused") {
    AttentionForward<float> arguments{};
    arguments.shape = shape_of(1, 1, 4, 4, 12, true);
    CHECK_THROWS_AS(own_attention_forward(arguments, nullptr), Error);   // head size 12
    arguments.shape = shape_of(1, 1, 4, 4, 264, true);
    CHECK_THROWS_AS(own_attention_forward(arguments, nullptr), Error);   // head size 264
    arguments.shape = shape_of(1, 1, 4, 0, 64, true);
    CHECK_THROWS_AS(own_attention_forward(arguments, nullptr), Error);   // no keys
    arguments.shape = shape_of(1, 1, 4, 4, 64, true);
    arguments.q.token = 68;
    CHECK_THROWS_AS(own_attention_forward(arguments, nullptr), Error);   // rows not aligned
}
