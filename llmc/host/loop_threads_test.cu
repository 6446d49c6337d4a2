// Kernels that deal a block's work out by blockDim run with one thread on a CPU, and as on a GPU while checks are on.
// The other tests see the second; here both run and must agree.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/rng.h"
#include "llmc/host/host_test.h"
#include "llmc/kernels/adamw.cuh"
#include "llmc/kernels/classifier.cuh"
#include "llmc/kernels/global_norm.cuh"

namespace {

// Calls body(arena, stream) twice, with checks and without, and returns what it returned.
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

constexpr std::int64_t lengths[] = {1, 7, 8, 1000, 8192, 8193, 70001};

}   // namespace

TEST_CASE("loop_threads: as many as asked for under checks, else one") {
    {
        host::TestDevice device;
        CHECK(loop_threads(256) == 256);
    }
    host::TestDevice device(host::Checks{});
    CHECK(loop_threads(256) == 1);
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
                AdamRange<bf16, float> range{
                    p.data(), with_masters ? w.data() : nullptr, g.data(), m.data(), v.data(), n, 0.1f};
                auto table = make_adam_table<bf16, float>(arena, "test", {range}, stream);
                adamw_update(table, AdamStep{1e-3f, 0.9f, 0.95f, 1e-8f, 3, 17}, stream);
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
            auto table = make_norm_table<float>(arena, "test", {{g.data(), n}}, stream);
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
