// Library attention against the double-precision reference; where the library refuses, that it says so and why.

#include "llmc/kernels/attention/library/library_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "llmc/kernels/attention/attention_kinds.h"
#include "llmc/kernels/attention/attention_testing.h"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

template <class T, class O = T>
ForwardFunction<T, O> library_forward(LibraryAttention& library) {
    return [&library](const AttentionForward<T, O>& a, cudaStream_t stream) {
        library_attention_forward(library, a, stream);
    };
}

template <class T, class O = T>
BackwardFunction<T, O> library_backward(LibraryAttention& library) {
    return [&library](const AttentionBackward<T, O>& a, cudaStream_t stream) {
        library_attention_backward(library, a, stream);
    };
}

// Against the reference where the library can serve the shape; where it cannot (never on a CPU) with a message.
template <class T, class O = T>
void check_library(const AttentionShape& shape, Layout layout) {
    const std::string refusal = attention_refusal<T, O>(AttentionKind::library, shape);
    if (!refusal.empty()) {
        MESSAGE("skipped: " << refusal);
        return;
    }
    Arena arena;
    LibraryAttention library(arena);
    check_attention<T, O>(library_forward<T, O>(library), library_backward<T, O>(library), shape, layout);
}

// Measures forward and backward of fp32 heads of 64, with each mask in turn; an empty one is none. Tells the median
// time without a mask, which comes first, and returns the median ratios of the others to it.
std::vector<double> measured_ratios(const AttentionShape& plain, const std::vector<std::vector<int>>& masks,
                                    int turns) {
    const int T = plain.Tq, NH = plain.NH;
    TestDevice device;
    auto random = [&](const char* name, std::size_t parts) {
        auto buffer = device.arena.allocate<float>(name, parts * static_cast<std::size_t>(T * NH) * 64);
        std::vector<float> values(buffer.size());
        for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(normal(1, i));
        buffer.upload(values, device.stream);
        return buffer;
    };
    const auto qkv = random("test/qkv", 3), dqkv = random("test/dqkv", 3), out = random("test/out", 1),
               dout = random("test/dout", 1), lse = random("test/lse", 1), delta = random("test/delta", 1);
    std::vector<AttentionShape> shapes;
    std::vector<DeviceBuffer<int>> memory(masks.size());
    for (std::size_t i = 0; i < masks.size(); i++) {
        shapes.push_back(plain);
        if (!masks[i].empty()) shapes[i].documents = {masks[i].data(), T};
        shapes[i] = on_device(shapes[i], device, memory[i]);
    }
    LibraryAttention library(device.arena);
    auto part = [&](const DeviceBuffer<float>& of, int i) { return packed_heads(of.data(), i, T, NH, 64); };
    auto seconds = [&](const AttentionShape& shape) {
        const auto begin = std::chrono::steady_clock::now();
        const auto heads = [&](const DeviceBuffer<float>& of) { return contiguous_heads(of.data(), T, NH, 64); };
        library.forward(
            AttentionForward<float>{heads(out), lse.data(), part(qkv, 0), part(qkv, 1), part(qkv, 2), shape},
            device.stream);
        library.backward(
            AttentionBackward<float>{part(dqkv, 0), part(dqkv, 1), part(dqkv, 2), delta.data(), heads(dout), heads(out),
                                     lse.data(), part(qkv, 0), part(qkv, 1), part(qkv, 2), shape},
            device.stream);
        CUDA_CHECK(cudaStreamSynchronize(device.stream));
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    std::vector<std::vector<double>> took(masks.size()), ratios(masks.size());
    for (int turn = -1; turn < turns; turn++) {
        for (std::size_t i = 0; i < masks.size(); i++) {
            const double s = seconds(shapes[i]);
            if (turn < 0) continue;   // the first warms up
            took[i].push_back(s), ratios[i].push_back(s / took[0].back());
        }
    }
    auto median = [](std::vector<double> values) {
        std::ranges::sort(values);
        return values[values.size() / 2];
    };
    MESSAGE("without a mask ", 1e3 * median(took[0]), " ms");
    std::vector<double> found;
    for (std::size_t i = 1; i < masks.size(); i++) found.push_back(median(ratios[i]));
    return found;
}

}   // namespace

TEST_CASE_TEMPLATE("library_attention: every head size and layout matches double precision", T, float, bf16) {
    for (int HS : {16, 64, 80, 128, 256}) check_library<T>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
    for (Layout layout : {Layout::packed, Layout::head_major, Layout::spaced}) {
        check_library<T>(shape_of(3, 3, 17, 17, 16, true), layout);
        check_library<T>(shape_of(2, 3, 40, 40, 80, false), layout);
    }
}

TEST_CASE_TEMPLATE("library_attention: every length matches, several blocks of queries and keys", T, float, bf16) {
    for (int tokens : {1, 2, 17, 127, 128, 129, 256, 257, 400}) {
        check_library<T>(shape_of(1, 1, tokens, tokens, 64, true), Layout::packed);
    }
    for (auto [Tq, Tk] : {std::pair{5, 300}, {300, 5}, {130, 260}}) {
        check_library<T>(shape_of(1, 2, Tq, Tk, 32, false), Layout::head_major);
    }
}

TEST_CASE_TEMPLATE("library_attention: causal with offsets, rows that see nothing included", T, float, bf16) {
    for (auto [q0, k0] : {std::pair<std::int64_t, std::int64_t>{64, 0}, {0, 10}, {1000000, 1000000}, {0, 1000}}) {
        check_library<T>(shape_of(1, 2, 150, 290, 32, true, q0, k0), Layout::spaced);
    }
}

TEST_CASE_TEMPLATE("library_attention: heads of queries share heads of keys and values", T, float, bf16) {
    for (int group : {2, 4}) check_library<T>(self_attention_shape(2, 300, 4, 64, true, group), Layout::packed);
    check_library<T>(self_attention_shape(1, 40, 6, 24, false, 3), Layout::spaced);
    check_library<T>(self_attention_shape(1, 140, 4, 200, true, 2), Layout::spaced);
}

TEST_CASE_TEMPLATE("library_attention: documents see only themselves", T, float, bf16) {
    AttentionShape asked = self_attention_shape(1, 64, 1, 64);
    asked.masks_documents = true;
    if (!attention_refusal<T, T>(AttentionKind::library, asked).empty()) return;
    check_documents([](const AttentionShape& shape) { check_library<T>(shape, Layout::packed); });
    Arena arena;
    LibraryAttention library(arena);
    check_no_gradient_crosses<T>(library_forward<T>(library), library_backward<T>(library));
    check_one_document<T>(library_forward<T>(library), library_backward<T>(library));
}

TEST_CASE("library_attention: bf16 inputs with fp32 results") {
    check_library<bf16, float>(shape_of(2, 2, 140, 140, 64, true), Layout::packed);
}

TEST_CASE_TEMPLATE("library_attention: two runs are bit-identical", T, float, bf16) {
    const AttentionShape shape = shape_of(2, 2, 300, 300, 64, true);
    if (!attention_refusal<T, T>(AttentionKind::library, shape).empty()) return;
    Arena arena;
    LibraryAttention library(arena);
    AttentionInputs inputs = random_inputs<T>(shape);
    AttentionReference once = run_forward<T, T>(library_forward<T>(library), shape, Layout::packed, inputs);
    AttentionReference twice = run_forward<T, T>(library_forward<T>(library), shape, Layout::packed, inputs);
    CHECK(once.out == twice.out);
    CHECK(once.lse == twice.lse);
    AttentionReference a = run_backward<T, T>(library_backward<T>(library), shape, Layout::packed, inputs, once);
    AttentionReference b = run_backward<T, T>(library_backward<T>(library), shape, Layout::packed, inputs, once);
    CHECK(a.dq == b.dq);
    CHECK(a.dk == b.dk);
    CHECK(a.dv == b.dv);
}

TEST_CASE("library_attention: the workspace that is reported is what calls of that shape take") {
    const AttentionShape shape = self_attention_shape(2, 128, 2, 64);
    if (!attention_refusal<bf16, bf16>(AttentionKind::library, shape).empty()) return;
    Arena arena;
    LibraryAttention library(arena);
    auto part = [](int p) { return packed_heads<bf16>(nullptr, p, 128, 2, 64); };
    const auto alone = contiguous_heads<bf16>(nullptr, 128, 2, 64);
    library.prepare(AttentionForward<bf16>{alone, nullptr, part(0), part(1), part(2), shape});
    library.prepare(AttentionBackward<bf16>{part(0), part(1), part(2), nullptr, alone, alone, nullptr, part(0), part(1),
                                            part(2), shape});
    CHECK(arena.bytes() == LibraryAttention::workspace_bytes<bf16>(shape));
}

TEST_CASE("library_attention: large scores neither overflow nor lose the sum") {
    const AttentionShape shape = shape_of(1, 1, 300, 300, 64, true);
    if (!attention_refusal<float, float>(AttentionKind::library, shape).empty()) return;
    Arena arena;
    LibraryAttention library(arena);
    AttentionInputs inputs = random_inputs<float>(shape);
    for (double& value : inputs.q) value *= 100;
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v);
    AttentionReference found =
        run_forward<float, float>(library_forward<float>(library), shape, Layout::packed, inputs);
    CHECK(relative_error(found.out, expected.out) < 1e-4);
    CHECK(lse_error(found.lse, expected.lse) < 1e-3);
}

// Forward and backward at T = 4,096: without a mask, with one that hides nothing, and with eight equal documents, in
// turns; medians of ratios.
TEST_CASE("library_attention: what masks of documents cost and save" * doctest::skip()) {
    const AttentionShape plain = self_attention_shape(1, 4096, 4, 64);
    if (const std::string refusal = attention_refusal<float, float>(AttentionKind::library, plain); !refusal.empty()) {
        MESSAGE("skipped: " << refusal);
        return;
    }
    const auto ratios = measured_ratios(
        plain, {{}, first_keys_of(plain, {{0}}), first_keys_of(plain, {{0, 512, 1024, 1536, 2048, 2560, 3072, 3584}})},
        15);
    MESSAGE("one document ", ratios[0], " of it; eight ", ratios[1]);
    CHECK(ratios[0] < 1.03);
    CHECK(ratios[1] < 1);
}

TEST_CASE("library_attention: what a window of 1,024 of 16,384 tokens saves" * doctest::skip()) {
    const int T = 16384, W = 1024;
    const AttentionShape plain = self_attention_shape(1, T, 1, 64);
    if (const std::string refusal = attention_refusal<float, float>(AttentionKind::library, plain); !refusal.empty()) {
        MESSAGE("skipped: " << refusal);
        return;
    }
    std::vector<int> first(T);
    for (int t = 0; t < T; t++) first[static_cast<std::size_t>(t)] = std::max(0, t + 1 - W);
    const double ratio = measured_ratios(plain, {{}, first}, 3).front();
    MESSAGE("with the window ", ratio, " of it");
    CHECK(ratio < 0.5);
}
