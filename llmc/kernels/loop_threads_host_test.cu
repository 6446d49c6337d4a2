// Kernels that deal a block's work out by blockDim run with one thread on a CPU, and as on a GPU with the check
// `shape`. The other tests see the second; here both run and must agree.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/rng.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/attention/attention_merge.cuh"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/optim/update.cuh"
#include "llmc/kernels/rows/classifier.cuh"
#include "llmc/kernels/rows/head_norms.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/residual.cuh"

namespace {

// Calls body(arena, stream) twice, with every check and without any, and returns what it returned.
template <class Body>
auto with_and_without_checks(Body body) {
    auto once = [&](const host::Checks& checks) {
        host::TestDevice device(checks);
        Arena arena;
        auto result = body(arena, device.stream());
        CHECK(device->fault_message().empty());
        return result;
    };
    auto checked = once(host::strict_checks());
    return std::pair(checked, once(host::Checks{}));
}

std::vector<float> random(std::size_t n, std::uint64_t seed, float scale = 1) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; i++) values[i] = scale * normal(mix64(seed), i);
    return values;
}

template <class T>
DeviceBuffer<T> upload(Arena& arena, cudaStream_t stream, const std::vector<float>& values) {
    std::vector<T> converted(values.begin(), values.end());
    DeviceBuffer<T> buffer = arena.allocate<T>("test", values.size());
    buffer.upload(converted, stream);
    return buffer;
}

// |a - b| <= error: sums have another order with one thread.
void check_near(const std::vector<float>& a, const std::vector<float>& b, float error) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); i++) REQUIRE(std::fabs(a[i] - b[i]) <= error);
}

template <class T>
void append(std::vector<float>& all, const DeviceBuffer<T>& buffer, cudaStream_t stream) {
    for (T x : buffer.download(stream)) all.push_back(static_cast<float>(x));
}

struct RowShape {
    int rows, C;
};
constexpr RowShape row_shapes[] = {{1, 1}, {37, 48}, {9, 65}, {300, 768}, {5, 1601}, {3, 6144}};

constexpr std::int64_t lengths[] = {1, 7, 8, 1000, 8192, 8193, 70001};

}   // namespace

TEST_CASE("loop_threads: as many as asked for with `shape`, else one, whatever else is checked") {
    for (auto [checks, threads] :
         {std::pair("shape", 256u), {"all", 256}, {"none", 1}, {"memory,poison,races,order", 1}}) {
        host::TestDevice device(host::parse_checks(checks));
        CHECK(loop_threads(256) == threads);
    }
}

TEST_CASE("loop_threads: AdamW gives the same bits with one thread per block as with many") {
    for (bool with_masters : {true, false}) {
        auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
            std::vector<float> all;
            for (std::int64_t n : lengths) {
                auto w = upload<float>(arena, stream, random(n, 1)),
                     m = upload<float>(arena, stream, random(n, 2, 0.01f));
                auto g = upload<float>(arena, stream, random(n, 3)),
                     v = upload<float>(arena, stream, std::vector<float>(n, 0.1f));
                auto p = upload<bf16>(arena, stream, random(n, 4));
                UpdateRange<bf16> range{p.data(), with_masters ? w.data() : nullptr, g.data(), m.data(), v.data(), n,
                                        0.1f};
                auto table = make_update_table<bf16>(arena, "test", {range}, stream);
                set_update_step(table, UpdateStep{1e-3f, 0.9f, 0.95f, 1e-8f, 3, 17}, stream);
                update_weights<AdamW>(table, stream);
                for (auto* buffer : {&w, &m, &v}) {
                    std::vector<float> values = buffer->download(stream);
                    all.insert(all.end(), values.begin(), values.end());
                }
                for (bf16 x : p.download(stream)) all.push_back(x);
            }
            return all;
        });
        CHECK(checked == plain);
    }
}

TEST_CASE("loop_threads: sums of squares agree with double precision either way") {
    auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
        std::vector<double> sums;
        for (std::int64_t n : lengths) {
            auto g = upload<float>(arena, stream, random(n, 5));
            auto sum = arena.allocate<double>("sum", 1);
            auto table = make_norm_table(arena, "test", {{g.data(), n}}, stream);
            sum_of_squares(sum.data(), table, false, stream);
            double exact = 0;
            for (float x : random(n, 5)) exact += static_cast<double>(x) * static_cast<double>(x);
            sums.push_back(sum.download(stream)[0] / exact);
        }
        return sums;
    });
    for (const auto& sums : {checked, plain}) {
        for (double ratio : sums) CHECK(std::fabs(ratio - 1) < 1e-6);
    }
}

TEST_CASE("loop_threads: merged attention has the same bits with one thread per row as with many") {
    for (int HS : {8, 64, 72, 128}) {
        auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
            const HeadSizes sizes{2, 19, 3, HS};   // rows that do not fill the last block
            const auto rows = static_cast<std::size_t>(sizes.rows()), n = rows * static_cast<std::size_t>(HS);
            auto out = upload<float>(arena, stream, random(n, 15)), more = upload<float>(arena, stream, random(n, 16));
            auto lse = upload<float>(arena, stream, random(rows, 17));
            auto more_lse = upload<float>(arena, stream, random(rows, 18));
            merge_attention({contiguous_heads(out.data(), 19, 3, HS), lse.data(),
                             contiguous_heads(more.data(), 19, 3, HS), more_lse.data(), sizes, 19},
                            stream);
            std::vector<float> all;
            append(all, out, stream);
            append(all, lse, stream);
            return all;
        });
        CHECK(checked == plain);
    }
}

TEST_CASE("loop_threads: the classifier's losses and gradients agree either way") {
    const int rows = 5, V = 5003, Vp = 5008;
    auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
        auto logits = upload<float>(arena, stream, random(rows * Vp, 6, 3));
        auto losses = arena.allocate<float>("losses", rows);
        auto targets = arena.allocate<int>("targets", rows);
        targets.upload(std::vector<int>{0, 17, -1, V - 1, 2500}, stream);
        fused_classifier(Classifier<float>{logits.data(), losses.data(), targets.data(), rows, V, Vp, 0.25f,
                                           ClassifierOutput::loss_and_gradient},
                         stream);
        std::vector<float> all = losses.download(stream), gradient = logits.download(stream);
        all.insert(all.end(), gradient.begin(), gradient.end());
        return all;
    });
    REQUIRE(checked.size() == plain.size());
    for (std::size_t i = 0; i < checked.size(); i++) {
        REQUIRE(std::fabs(checked[i] - plain[i]) <= 2e-6f * std::fabs(checked[i]));
    }
    CHECK(checked[2] == 0.0f);
}

TEST_CASE_TEMPLATE("loop_threads: layer normalisation agrees either way", Real, float, bf16) {
    for (const RowShape& shape : row_shapes) {
        const int rows = shape.rows, C = shape.C;   // not a structured binding: clang++ 14 captures none
        auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
            const std::size_t n = static_cast<std::size_t>(rows) * C;
            auto a = upload<Real>(arena, stream, random(n, 7)), b = upload<Real>(arena, stream, random(n, 8));
            auto weight = upload<Real>(arena, stream, random(C, 9)), bias = upload<Real>(arena, stream, random(C, 10));
            auto sum = arena.allocate<Real>("sum", n), out = arena.allocate<Real>("out", n);
            auto out2 = arena.allocate<Real>("out2", n);
            auto mean = arena.allocate<float>("mean", rows), rstd = arena.allocate<float>("rstd", rows);
            residual_layernorm_forward<Real>({sum.data(), out.data(), mean.data(), rstd.data(), a.data(), b.data(),
                                              weight.data(), bias.data(), rows, C},
                                             stream);
            layernorm_forward<Real>(
                {out2.data(), mean.data(), rstd.data(), sum.data(), weight.data(), bias.data(), rows, C}, stream);
            std::vector<float> all, again;
            append(all, out, stream);
            append(again, out2, stream);
            CHECK(all == again);   // fused or not
            append(all, mean, stream);
            append(all, rstd, stream);
            append(all, sum, stream);
            return all;
        });
        // one unit of the largest numbers, in bf16 where a rounding went the other way
        check_near(checked, plain, std::is_same_v<Real, bf16> ? 0x1p-4f : 1e-5f);
    }
}

TEST_CASE_TEMPLATE("loop_threads: layer normalisation's gradients agree either way", Real, float, bf16) {
    for (const RowShape& shape : row_shapes) {
        const int rows = shape.rows, C = shape.C;   // not a structured binding: clang++ 14 captures none
        for (bool accumulate : {false, true}) {
            auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
                const std::size_t n = static_cast<std::size_t>(rows) * C;
                auto in = upload<Real>(arena, stream, random(n, 7)), dout = upload<Real>(arena, stream, random(n, 8));
                auto din = upload<Real>(arena, stream, random(n, 11)),
                     weight = upload<Real>(arena, stream, random(C, 9));
                auto dweight = upload<float>(arena, stream, random(C, 12));
                auto dbias = upload<float>(arena, stream, random(C, 13));
                auto mean = upload<float>(arena, stream, random(rows, 14, 0.1f));
                auto rstd = upload<float>(arena, stream, std::vector<float>(rows, 1.1f));
                auto scratch = arena.allocate<float>("scratch", layernorm_backward_scratch(rows, C));
                layernorm_backward<Real, float>(
                    {din.data(), dweight.data(), dbias.data(), scratch.data(), dout.data(), in.data(), weight.data(),
                     mean.data(), rstd.data(), rows, C, accumulate, accumulate},
                    stream);
                std::vector<float> all;
                append(all, din, stream);
                append(all, dweight, stream);
                append(all, dbias, stream);
                return all;
            });
            check_near(checked, plain, std::is_same_v<Real, bf16> ? 0x1p-4f : 1e-4f);
        }
    }
}

TEST_CASE_TEMPLATE("loop_threads: norms of heads agree either way", Real, float, bf16) {
    constexpr int rows = 70, queries = 5, keys = 2;
    for (const int HS : {16, 64, 96, 128}) {
        auto [checked, plain] = with_and_without_checks([&](Arena& arena, cudaStream_t stream) {
            const int row = (queries + 2 * keys) * HS;
            auto heads = upload<Real>(arena, stream, random(rows * row, 7)),
                 gradient = upload<Real>(arena, stream, random(rows * row, 8));
            auto weight = upload<Real>(arena, stream, random(HS, 9));
            auto raw = arena.allocate<Real>("raw", rows * (queries + keys) * HS);
            auto rstd = arena.allocate<float>("rstd", rows * (queries + keys));
            auto dq = arena.allocate<float>("dq", HS), dk = arena.allocate<float>("dk", HS);
            auto scratch = arena.allocate<float>("scratch", head_norms_scratch(rows, HS));
            HeadNorms<Real> args{
                .heads = heads.data(),
                .row = row,
                .rows = rows,
                .HS = HS,
                .queries = {queries, weight.data(), raw.data(), rstd.data()},
                .keys = {keys, weight.data(), raw.data() + rows * queries * HS, rstd.data() + rows * queries},
                .turns = true,
                .angles = {0, rows, {}, {.theta = 10000}, false}};
            head_norms_forward(args, 1e-5f, true, stream);
            args.heads = gradient.data();
            head_norms_backward(args, dq.data(), dk.data(), scratch.data(), false, stream);
            std::vector<float> all;
            for (const auto* of : {&heads, &gradient, &raw}) append(all, *of, stream);
            for (const auto* of : {&rstd, &dq, &dk}) append(all, *of, stream);
            return all;
        });
        check_near(checked, plain, std::is_same_v<Real, bf16> ? 0x1p-4f : 1e-4f);
    }
}
