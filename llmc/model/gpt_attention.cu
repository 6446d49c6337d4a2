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

void Gpt::use_attention(AttentionKind kind) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    attention_->take(kind, attention_shape());
}

AttentionKind Gpt::faster_attention() {
    const AttentionShape shape = attention_shape();
    if (!LibraryAttention::refusal<floatX>(shape).empty()) return AttentionKind::own;
    Arena scratch;
    AttentionChoice<floatX> own(AttentionKind::own, shape, scratch), library(AttentionKind::library, shape, scratch);

    const BlockActivations& a = activations_->block(0);
    const std::int64_t elements = std::int64_t{rows()} * C_;
    floatX *dqkv = workspace_->rows_3c.data(), *drows = workspace_->rows_c.data();
    fill_normal(a.qkv, 3 * elements, 1.0f, 1, GlobalSpan{}, stream_);
    fill_normal(drows, elements, 1.0f, 2, GlobalSpan{}, stream_);
    const floatX *qkv = a.qkv, *out = a.atty, *dout = drows;
    auto step = [&](const AttentionChoice<floatX>& attention) {
        attention.forward(
            AttentionForward<floatX>{heads(a.atty), a.lse, heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), shape},
            stream_);
        attention.backward(AttentionBackward<floatX>{heads(dqkv, 0), heads(dqkv, 1), heads(dqkv, 2),
                                                     workspace_->delta.data(), heads(dout), heads(out), a.lse,
                                                     heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), shape},
                           stream_);
    };
    const float own_ms = fastest_ms([&] { step(own); }, stream_);
    const float library_ms = fastest_ms([&] { step(library); }, stream_);
    return own_ms < library_ms ? AttentionKind::own : AttentionKind::library;
}
