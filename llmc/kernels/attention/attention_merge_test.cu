#include "llmc/kernels/attention/attention_merge.cuh"

#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/transpose_pieces.cuh"

namespace {

// Attention over 2 x `half` keys as two blocks that are merged; the second block's queries begin at `first_query`.
void check_merge(int B, int NH, int T, int HS, int half, int first_query) {
    const AttentionShape whole{B, NH, T, 2 * half, HS, 0.7f, false};
    AttentionShape block = whole;
    block.Tk = half;
    AttentionInputs inputs = random_inputs<float>(whole);
    for (double& k : inputs.k) k *= 3;   // so that blocks have very different shares
    auto half_of = [&](const std::vector<double>& all, int which) {
        std::vector<double> part;
        const auto tokens = static_cast<std::ptrdiff_t>(half) * NH * HS;
        for (int b = 0; b < B; b++) {
            const auto begin = all.begin() + (2 * b + which) * tokens;
            part.insert(part.end(), begin, begin + tokens);
        }
        return part;
    };
    const AttentionReference first = reference_attention(block, inputs.q, half_of(inputs.k, 0), half_of(inputs.v, 0));
    const AttentionReference second = reference_attention(block, inputs.q, half_of(inputs.k, 1), half_of(inputs.v, 1));
    const AttentionReference both = reference_attention(whole, inputs.q, inputs.k, inputs.v);

    TestDevice device;
    TestTensor<float> out(device.arena, whole, false, Layout::spaced, 0, device.stream);
    out.upload(first.out);
    const int queries = T - first_query;
    std::vector<float> block_out, block_lse, lse(first.lse.begin(), first.lse.end());
    for (int b = 0; b < B; b++) {
        for (int t = first_query; t < T; t++) {
            const auto row = second.out.begin() + (static_cast<std::ptrdiff_t>(b) * T + t) * NH * HS;
            block_out.insert(block_out.end(), row, row + NH * HS);
        }
        for (int h = 0; h < NH; h++) {
            const auto row = second.lse.begin() + (static_cast<std::ptrdiff_t>(b) * NH + h) * T;
            block_lse.insert(block_lse.end(), row + first_query, row + T);
        }
    }
    auto on_device = [&](const std::vector<float>& values) {
        auto buffer = device.arena.allocate<float>("test/values", values.size());
        buffer.upload(values, device.stream);
        return buffer;
    };
    const auto block_out_buffer = on_device(block_out), block_lse_buffer = on_device(block_lse),
               lse_buffer = on_device(lse);
    HeadsView<float> merged = out.view();
    merged.data += first_query * merged.token;
    merge_attention(
        {merged, lse_buffer.data() + first_query, contiguous_heads(block_out_buffer.data(), queries, NH, HS),
         block_lse_buffer.data(), HeadSizes{B, queries, NH, HS}, T},
        device.stream);
    const std::vector<double> found = out.download();
    const std::vector<float> found_lse = lse_buffer.download(device.stream);
    double out_error = 0, merged_lse_error = 0, mean_error = 0;
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const AttentionReference& expected = t < first_query ? first : both;
            for (int h = 0; h < NH; h++) {
                const auto statistic = (static_cast<std::size_t>(b) * NH + h) * T + t;
                merged_lse_error = std::max(merged_lse_error, std::abs(found_lse[statistic] - expected.lse[statistic]));
                for (int c = 0; c < HS; c++) {
                    const auto i = ((static_cast<std::size_t>(b) * T + t) * NH + h) * HS + c;
                    out_error = std::max(out_error, std::abs(found[i] - expected.out[i]));
                    mean_error = std::max(mean_error, std::abs((first.out[i] + second.out[i]) / 2 - both.out[i]));
                }
            }
        }
    }
    CHECK(out_error < 5e-6);   // lse up to 16, rounded to 1e-6, weighs outputs up to 4
    CHECK(merged_lse_error < 1e-5);
    CHECK(mean_error > 0.1);   // error of a merge without log-sum-exp
}

}   // namespace

TEST_CASE("attention merge: two blocks of keys are merged by log-sum-exp, some queries or all") {
    check_merge(1, 1, 8, 8, 4, 0);
    check_merge(2, 3, 10, 24, 6, 0);
    check_merge(2, 3, 10, 24, 6, 5);
    check_merge(1, 2, 300, 64, 16, 150);
    check_merge(1, 2, 40, 256, 16, 15);
}

TEST_CASE("attention merge: a block of which a query sees nothing changes nothing, and the first one seen is taken") {
    TestDevice device;
    auto on_device = [&](std::vector<float> values) {
        auto buffer = device.arena.allocate<float>("test/values", values.size());
        buffer.upload(values, device.stream);
        return buffer;
    };
    // two queries: one saw nothing before, one sees nothing now
    const auto out = on_device({0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}), lse = on_device({-INFINITY, 2.0f});
    const auto more = on_device({9, 8, 7, 6, 5, 4, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0}),
               more_lse = on_device({3.0f, -INFINITY});
    merge_attention({contiguous_heads(out.data(), 2, 1, 8), lse.data(), contiguous_heads(more.data(), 2, 1, 8),
                     more_lse.data(), HeadSizes{1, 2, 1, 8}, 2},
                    device.stream);
    CHECK(out.download(device.stream) == std::vector<float>{9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(lse.download(device.stream) == std::vector<float>{3.0f, 2.0f});
}

TEST_CASE_TEMPLATE("copy heads: views of any strides, copied or added, rounded once", T, float, bf16) {
    TestDevice device;
    const AttentionShape shape{2, 3, 7, 7, 24, 1.0f, false};
    const std::vector<double> values = random_heads<T>(shape, 7, 3, 1), more = random_heads<T>(shape, 7, 3, 2);
    TestTensor<T> a(device.arena, shape, false, Layout::packed, 1, device.stream),
        b(device.arena, shape, false, Layout::spaced, 0, device.stream);
    TestTensor<float> sum(device.arena, shape, false, Layout::head_major, 0, device.stream);
    a.upload(values);
    b.upload(more);
    const HeadSizes sizes{2, 7, 3, 24};
    copy_heads(sum.view(), a.view(), sizes, false, device.stream);
    CHECK(sum.download() == values);
    copy_heads(sum.view(), b.view(), sizes, true, device.stream);
    std::vector<double> expected(values.size()), rounded(values.size());
    for (std::size_t i = 0; i < values.size(); i++) {
        expected[i] = static_cast<float>(values[i]) + static_cast<float>(more[i]);
        rounded[i] = static_cast<float>(static_cast<T>(static_cast<float>(expected[i])));
    }
    CHECK(sum.download() == expected);
    copy_heads(b.view(), sum.view(), sizes, false, device.stream);
    CHECK(b.download() == rounded);
}

TEST_CASE_TEMPLATE("transpose pieces: every piece at its place", T, float, bf16) {
    TestDevice device;
    for (const auto& [rows, columns, piece] : {std::array<int, 3>{1, 1, 8}, std::array<int, 3>{3, 5, 8},
                                               std::array<int, 3>{7, 2, 24}, std::array<int, 3>{300, 4, 16}}) {
        std::vector<T> in;
        for (int i = 0; i < rows * columns * piece; i++) in.push_back(static_cast<T>(static_cast<float>(i % 251)));
        const auto from = device.arena.allocate<T>("test/in", in.size()),
                   to = device.arena.allocate<T>("test/out", in.size());
        from.upload(in, device.stream);
        transpose_pieces(to.data(), static_cast<const T*>(from.data()), rows, columns, piece, device.stream);
        const std::vector<T> found = to.download(device.stream);
        int wrong = 0;
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < columns; j++) {
                for (int k = 0; k < piece; k++) {
                    wrong += static_cast<float>(found[static_cast<std::size_t>((j * rows + i) * piece + k)]) !=
                             static_cast<float>(in[static_cast<std::size_t>((i * columns + j) * piece + k)]);
                }
            }
        }
        CHECK(wrong == 0);
    }
}
