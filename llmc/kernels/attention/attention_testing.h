// Runs an attention on the device from plain host tensors, for the tests of every implementation.
//
// Host tensors are (B, T, NH or kv heads, HS) in double, already rounded to the element type. On the device each lies
// in a buffer of its own with the strides of a layout; what lies between is a number that ruins every result when read
// and is checked to be untouched when written to.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_reference_testing.h"

// How the test tensors lie in memory: as parts of the rows of packed_heads, as (B, NH, T, HS), or with gaps everywhere.
enum class Layout { packed, head_major, spaced };

constexpr float GAP = 1e30f;   // between the elements of a tensor

template <class T>
class TestTensor {
public:
    TestTensor(Arena& arena, const AttentionShape& shape, bool of_keys, Layout layout, int part, cudaStream_t stream)
        : shape_(shape),
          tokens_(of_keys ? shape.Tk : shape.Tq),
          heads_(of_keys ? shape.kv_heads() : shape.NH),
          stream_(stream) {
        const int tokens = tokens_;
        std::int64_t row = std::int64_t{heads_} * shape.HS;
        if (layout == Layout::packed) {
            strides_ = packed_heads<T>(nullptr, 0, tokens, shape.NH, shape.HS, shape.kv_heads());
            offset_ = part == 0 ? 0 : (shape.NH + (part - 1) * std::int64_t{shape.kv_heads()}) * shape.HS;
        } else if (layout == Layout::head_major) {
            strides_ = {nullptr, tokens * row, shape.HS, std::int64_t{tokens} * shape.HS};
        } else {
            strides_ = {nullptr, tokens * (row + 8 * heads_ + 16) + 8, row + 8 * heads_ + 16, shape.HS + 8};
            offset_ = 8;
        }
        elements_.assign(static_cast<std::size_t>(offset_ + shape.B * strides_.batch), static_cast<T>(GAP));
        buffer_ = arena.allocate<T>("test/tensor", elements_.size());
        buffer_.upload(elements_, stream_);
    }

    HeadsView<T> view() const { return {buffer_.data() + offset_, strides_.batch, strides_.token, strides_.head}; }

    void upload(const std::vector<double>& values) {
        for_each([&](std::size_t dense, std::size_t strided) {
            elements_[strided] = static_cast<T>(static_cast<float>(values[dense]));
        });
        buffer_.upload(elements_, stream_);
    }

    // The tensor's elements; everything between them must be as it was.
    std::vector<double> download() {
        std::vector<T> found = buffer_.download(stream_);
        std::vector<double> values(static_cast<std::size_t>(shape_.B) * tokens_ * heads_ * shape_.HS);
        for_each([&](std::size_t dense, std::size_t strided) {
            values[dense] = static_cast<double>(static_cast<float>(found[strided]));
            found[strided] = static_cast<T>(GAP);
        });
        std::size_t touched = 0;
        for (T element : found) touched += static_cast<float>(element) != static_cast<float>(static_cast<T>(GAP));
        CHECK_MESSAGE(touched == 0, touched, " elements between those of the tensor were written");
        return values;
    }

private:
    template <class Visit>
    void for_each(Visit visit) const {
        std::size_t dense = 0;
        for (int b = 0; b < shape_.B; b++)
            for (int t = 0; t < tokens_; t++)
                for (int h = 0; h < heads_; h++)
                    for (int c = 0; c < shape_.HS; c++) {
                        visit(dense++, static_cast<std::size_t>(offset_ + b * strides_.batch + t * strides_.token +
                                                                h * strides_.head + c));
                    }
    }

    AttentionShape shape_;
    int tokens_, heads_;
    cudaStream_t stream_;
    HeadsView<T> strides_{};   // strides, with a null pointer
    std::int64_t offset_ = 0;
    std::vector<T> elements_;
    DeviceBuffer<T> buffer_;
};

struct AttentionInputs {
    std::vector<double> q, k, v, dout;
};

template <class T>
std::vector<double> random_heads(const AttentionShape& shape, int tokens, int heads, std::uint64_t key) {
    std::vector<double> values(static_cast<std::size_t>(shape.B) * tokens * heads * shape.HS);
    for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(static_cast<T>(normal(key, i)));
    return values;
}

template <class T>
AttentionInputs random_inputs(const AttentionShape& shape) {
    return {random_heads<T>(shape, shape.Tq, shape.NH, 1), random_heads<T>(shape, shape.Tk, shape.kv_heads(), 2),
            random_heads<T>(shape, shape.Tk, shape.kv_heads(), 3), random_heads<T>(shape, shape.Tq, shape.NH, 4)};
}

// ||a - b|| / ||b||; infinite where a is not finite. Where b is zero in exact arithmetic (one key: no gradient of q, k)
// the rounding of unit-sized inputs is no error: ||b|| counts as at least 0.1 per element.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        if (!std::isfinite(a[i])) return INFINITY;
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return std::sqrt(difference / std::max(norm, 0.01 * static_cast<double>(b.size())));
}

// The largest difference of two lse; -infinity agrees only with itself.
inline double lse_error(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        if (a[i] == b[i]) continue;
        double difference = std::abs(a[i] - b[i]);
        largest = std::max(largest, std::isfinite(difference) ? difference : INFINITY);
    }
    return largest;
}

// A stream and device memory of one test, waited for and destroyed at its end.
class TestDevice {
public:
    TestDevice() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~TestDevice() { cudaStreamDestroy(stream); }
    TestDevice(const TestDevice&) = delete;
    TestDevice& operator=(const TestDevice&) = delete;

    Arena arena;
    cudaStream_t stream = nullptr;
};

// A shape whose first keys, if any, are on the device. `memory` keeps them there.
inline AttentionShape on_device(AttentionShape shape, TestDevice& device, DeviceBuffer<int>& memory) {
    if (shape.documents.first == nullptr) return shape;
    const std::size_t count = static_cast<std::size_t>((shape.B - 1) * shape.documents.batch + shape.Tq);
    memory = device.arena.allocate<int>("test/first keys", count);
    memory.upload(std::span(shape.documents.first, count), device.stream);
    shape.documents.first = memory.data();
    return shape;
}

template <class T, class O>
using ForwardFunction = std::function<void(const AttentionForward<T, O>&, cudaStream_t)>;
template <class T, class G>
using BackwardFunction = std::function<void(const AttentionBackward<T, G>&, cudaStream_t)>;

// Only out and lse of the result are set.
template <class T, class O = T>
AttentionReference run_forward(const ForwardFunction<T, O>& attention, const AttentionShape& shape, Layout layout,
                               const AttentionInputs& inputs) {
    TestDevice device;
    TestTensor<T> q(device.arena, shape, false, layout, 0, device.stream);
    TestTensor<T> k(device.arena, shape, true, layout, 1, device.stream);
    TestTensor<T> v(device.arena, shape, true, layout, 2, device.stream);
    TestTensor<O> out(device.arena, shape, false, layout, 0, device.stream);
    auto lse = device.arena.allocate<float>("test/lse", static_cast<std::size_t>(shape.B) * shape.NH * shape.Tq);
    q.upload(inputs.q);
    k.upload(inputs.k);
    v.upload(inputs.v);
    DeviceBuffer<int> first_keys;
    attention({out.view(), lse.data(), q.view(), k.view(), v.view(), on_device(shape, device, first_keys)},
              device.stream);
    AttentionReference result;
    result.out = out.download();
    std::vector<float> lse_values = lse.download(device.stream);
    result.lse.assign(lse_values.begin(), lse_values.end());
    return result;
}

// dq, dk, dv from the given out and lse.
template <class T, class G = T>
AttentionReference run_backward(const BackwardFunction<T, G>& attention, const AttentionShape& shape, Layout layout,
                                const AttentionInputs& inputs, const AttentionReference& forward) {
    TestDevice device;
    Arena& arena = device.arena;
    TestTensor<T> q(arena, shape, false, layout, 0, device.stream), k(arena, shape, true, layout, 1, device.stream);
    TestTensor<T> v(arena, shape, true, layout, 2, device.stream);
    TestTensor<T> out(arena, shape, false, layout, 0, device.stream);
    TestTensor<T> dout(arena, shape, false, layout, 1, device.stream);
    TestTensor<G> dq(arena, shape, false, layout, 0, device.stream), dk(arena, shape, true, layout, 1, device.stream);
    TestTensor<G> dv(arena, shape, true, layout, 2, device.stream);
    auto lse = arena.allocate<float>("test/lse", forward.lse.size());
    auto delta = arena.allocate<float>("test/delta", forward.lse.size());
    q.upload(inputs.q);
    k.upload(inputs.k);
    v.upload(inputs.v);
    out.upload(forward.out);
    dout.upload(inputs.dout);
    std::vector<float> lse_values(forward.lse.begin(), forward.lse.end());
    lse.upload(lse_values, device.stream);
    DeviceBuffer<int> first_keys;
    attention({dq.view(), dk.view(), dv.view(), delta.data(), dout.view(), out.view(), lse.data(), q.view(), k.view(),
               v.view(), on_device(shape, device, first_keys)},
              device.stream);
    AttentionReference result;
    result.dq = dq.download();
    result.dk = dk.download();
    result.dv = dv.download();
    return result;
}

// First keys of queries at positions q0 .. of each sequence, whose documents begin where these say (positions,
// ascending for each sequence), among keys at k0 ...; for shape.documents.first.
inline std::vector<int> first_keys_of(const AttentionShape& shape, const std::vector<std::vector<int>>& begins) {
    std::vector<int> first;
    for (int b = 0; b < shape.B; b++) {
        for (int i = 0; i < shape.Tq; i++) {
            int begin = 0;
            for (const int next : begins[static_cast<std::size_t>(b) % begins.size()]) {
                if (next <= shape.q0 + i) begin = next;
            }
            first.push_back(std::max(0, begin - static_cast<int>(shape.k0)));
        }
    }
    return first;
}

// Largest errors allowed, by tensor norm (lse: absolute).
struct AttentionTolerance {
    double out, lse, gradient;
};
template <class T>
constexpr AttentionTolerance attention_tolerance() {
    return sizeof(T) == 4 ? AttentionTolerance{2e-6, 1e-5, 5e-6} : AttentionTolerance{5e-3, 2e-5, 1e-2};
}

// Calls `check(shape)` with the same documents in shapes of every kind: several tiles of them, borders inside tiles and
// at their edges, documents of one token, and queries that see none of these keys.
template <class Check>
void check_documents(Check check) {
    const std::vector<std::vector<int>> begins = {{0, 1, 2, 63, 127, 190}, {0}, {0, 64, 65, 128}};
    auto with = [&](AttentionShape shape) {
        const std::vector<int> first = first_keys_of(shape, begins);
        shape.documents = {first.data(), shape.Tq};
        check(shape);
    };
    for (const int HS : {32, 64, 128, 256}) with(self_attention_shape(3, HS > 128 ? 60 : 210, 2, HS));
    with(self_attention_shape(2, 300, 4, 64, true, 2));
    with(self_attention_shape(1, 210, 4, 128, true, 2));
    with(self_attention_shape(1, 70, 2, 256, true, 2));
    AttentionShape later = self_attention_shape(3, 100, 2, 32);   // a block of a ring: keys before the queries
    later.q0 = 110, later.Tk = 70, later.causal = false;
    with(later);
    later.Tk = 40;   // none of the last ones
    with(later);
}

// Forward and backward of one shape against the reference.
template <class T, class O = T>
void check_attention(const ForwardFunction<T, O>& forward, const BackwardFunction<T, O>& backward,
                     const AttentionShape& shape, Layout layout) {
    CAPTURE(shape.B);
    CAPTURE(shape.NH);
    CAPTURE(shape.Tq);
    CAPTURE(shape.Tk);
    CAPTURE(shape.HS);
    CAPTURE(shape.causal);
    CAPTURE(shape.q0);
    CAPTURE(shape.k0);
    CAPTURE(static_cast<int>(layout));
    AttentionTolerance tolerance = attention_tolerance<T>();
    AttentionInputs inputs = random_inputs<T>(shape);
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
    AttentionReference found = run_forward<T, O>(forward, shape, layout, inputs);
    CHECK(relative_error(found.out, expected.out) < tolerance.out);
    CHECK(lse_error(found.lse, expected.lse) < tolerance.lse);
    AttentionReference gradients = run_backward<T, O>(backward, shape, layout, inputs, found);
    CHECK(relative_error(gradients.dq, expected.dq) < tolerance.gradient);
    CHECK(relative_error(gradients.dk, expected.dk) < tolerance.gradient);
    CHECK(relative_error(gradients.dv, expected.dv) < tolerance.gradient);
}

// The gradient of what the second of two documents makes of itself is exactly zero in the first one.
template <class T>
void check_no_gradient_crosses(const ForwardFunction<T, T>& forward, const BackwardFunction<T, T>& backward) {
    AttentionShape shape = self_attention_shape(1, 150, 2, 64);
    const std::vector<int> first = first_keys_of(shape, {{0, 70}});
    shape.documents = {first.data(), shape.Tq};
    AttentionInputs inputs = random_inputs<T>(shape);
    const std::size_t row = static_cast<std::size_t>(shape.NH) * static_cast<std::size_t>(shape.HS);
    std::fill_n(inputs.dout.begin(), 70 * row, 0.0);
    const AttentionReference found = run_forward<T, T>(forward, shape, Layout::packed, inputs);
    const AttentionReference gradients = run_backward<T, T>(backward, shape, Layout::packed, inputs, found);
    for (const auto* of : {&gradients.dq, &gradients.dk, &gradients.dv}) {
        CHECK(std::all_of(of->begin(), of->begin() + 70 * static_cast<std::ptrdiff_t>(row),
                          [](double value) { return value == 0.0; }));
        CHECK(std::any_of(of->begin() + 70 * static_cast<std::ptrdiff_t>(row), of->end(),
                          [](double value) { return value != 0.0; }));
    }
}

// A mask that hides nothing changes no bit.
template <class T>
void check_one_document(const ForwardFunction<T, T>& forward, const BackwardFunction<T, T>& backward) {
    AttentionShape shape = self_attention_shape(2, 300, 2, 64);
    const AttentionInputs inputs = random_inputs<T>(shape);
    auto run = [&](const AttentionShape& of) {
        AttentionReference made = run_forward<T, T>(forward, of, Layout::packed, inputs);
        AttentionReference back = run_backward<T, T>(backward, of, Layout::packed, inputs, made);
        back.out = made.out, back.lse = made.lse;
        return back;
    };
    const AttentionReference without = run(shape);
    const std::vector<int> first = first_keys_of(shape, {{0}});
    shape.documents = {first.data(), shape.Tq};
    const AttentionReference with = run(shape);
    CHECK(with.out == without.out);
    CHECK(with.lse == without.lse);
    CHECK(with.dq == without.dq);
    CHECK(with.dk == without.dk);
    CHECK(with.dv == without.dv);
}
