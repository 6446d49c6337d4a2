// Own attention or the library's: taking one, and finding the faster one.
#include "llmc/kernels/least_time.h"
#include "llmc/model/stage.h"

void Stage::use_attention(AttentionKind kind) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const LayerActivations& a = pool_->activations.any().layers[0];
    const Attention& call = layers_[0].attention();
    try {
        attention_->take(kind, sizes_.attention());
        attention_->prepare(call.forward_arguments(a), call.backward_arguments(a));
    } catch (...) {
        attention_->take(AttentionKind::own, sizes_.attention());
        throw;
    }
}

Stage::FasterAttention Stage::faster_attention() {
    const AttentionShape shape = sizes_.attention();
    if (!attention_->refusal(shape).empty()) return {AttentionKind::own, ""};
    const LayerActivations& a = pool_->activations.any().layers[0];
    const Attention& call = layers_[0].attention();
    call.fill_randomly(a);
    auto measure = [&](AttentionKind kind) {
        Arena scratch;
        const AttentionChoice<floatX> attention(kind, shape, scratch);
        return least_seconds(
            [&] {
                attention.forward(call.forward_arguments(a), stream_);
                attention.backward(call.backward_arguments(a), stream_);
            },
            stream_, 5);
    };
    const double own_s = measure(AttentionKind::own);
    try {
        return {own_s < measure(AttentionKind::library) ? AttentionKind::own : AttentionKind::library, ""};
    } catch (const Error& error) {   // own attention serves without what the library wants
        if (error.kind() != ErrorKind::no_device) throw;
        CUDA_CHECK(cudaStreamSynchronize(stream_));
        return {AttentionKind::own, error.message()};
    }
}

std::optional<RingTimes> Stage::time_ring() {
    if (options_.place.mesh.cp == options_.ulysses) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const LayerActivations& a = pool_->activations.any().layers[0];
    const Attention& call = layers_[0].attention();
    call.fill_randomly(a);
    const std::optional<RingStep> step = tools_->cut_points.ring_step(*attention_, call.forward_arguments(a));
    if (!step) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    constexpr int calls = 2;
    const double block_s = least_seconds(step->block, stream_, calls),
                 hop_s = least_seconds(step->hop, step->traffic, calls);
    return RingTimes{hop_s, block_s};
}
