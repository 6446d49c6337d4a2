// Own attention or the library's: taking one, and finding the faster one.
#include <algorithm>

#include "llmc/kernels/init.cuh"
#include "llmc/model/gpt.h"

namespace {

class Event {
public:
    Event() { CUDA_CHECK(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    cudaEvent_t event = nullptr;
};

// Milliseconds of the fastest of a few calls, after one that warms up (library plans are made then).
template <class Call>
float fastest_ms(Call call, cudaStream_t stream) {
    constexpr int calls = 5;
    const Event begin, end;
    float fastest = 0;
    for (int i = 0; i <= calls; i++) {
        CUDA_CHECK(cudaEventRecord(begin.event, stream));
        call();
        CUDA_CHECK(cudaEventRecord(end.event, stream));
        CUDA_CHECK(cudaEventSynchronize(end.event));
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
        fastest = i <= 1 ? milliseconds : std::min(fastest, milliseconds);
    }
    return fastest;
}

}   // namespace

AttentionShape Gpt::attention_shape() const { return self_attention_shape(options_.B, options_.T, NH_, HS_); }

AttentionForward<floatX> Gpt::attention_forward_of(const BlockActivations& a) const {
    const floatX* qkv = a.qkv;
    return {heads(a.atty), a.lse, heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), attention_shape()};
}

AttentionBackward<floatX> Gpt::attention_backward_of(const BlockActivations& a) const {
    floatX* dqkv = workspace_->rows_3c.data();
    const floatX *qkv = a.qkv, *out = a.atty, *dout = workspace_->rows_c.data();
    return {heads(dqkv, 0), heads(dqkv, 1), heads(dqkv, 2), workspace_->delta.data(), heads(dout), heads(out), a.lse,
            heads(qkv, 0),  heads(qkv, 1),  heads(qkv, 2),  attention_shape()};
}

void Gpt::use_attention(AttentionKind kind) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    try {
        attention_->take(kind, attention_shape());
        attention_->prepare(attention_forward_of(activations_->block(0)),
                            attention_backward_of(activations_->block(0)));
    } catch (...) {
        attention_->take(AttentionKind::own, attention_shape());
        throw;
    }
}

Gpt::FasterAttention Gpt::faster_attention() {
    const AttentionShape shape = attention_shape();
    if (!LibraryAttention::refusal<floatX>(shape).empty()) return {AttentionKind::own, ""};
    const BlockActivations& a = activations_->block(0);
    const std::int64_t elements = std::int64_t{rows()} * C_;
    fill_normal(a.qkv, 3 * elements, 1.0f, 1, GlobalSpan{}, stream_);
    fill_normal(workspace_->rows_c.data(), elements, 1.0f, 2, GlobalSpan{}, stream_);
    auto measure = [&](AttentionKind kind) {
        Arena scratch;
        const AttentionChoice<floatX> attention(kind, shape, scratch);
        return fastest_ms(
            [&] {
                attention.forward(attention_forward_of(a), stream_);
                attention.backward(attention_backward_of(a), stream_);
            },
            stream_);
    };
    const float own_ms = measure(AttentionKind::own);
    try {
        return {own_ms < measure(AttentionKind::library) ? AttentionKind::own : AttentionKind::library, ""};
    } catch (const Error& error) {   // own attention serves without what the library wants
        if (error.kind() != ErrorKind::no_device) throw;
        CUDA_CHECK(cudaStreamSynchronize(stream_));
        return {AttentionKind::own, error.message()};
    }
}
