// Own attention or the library's: taking one, and finding the fastest one.
#include <limits>

#include "llmc/kernels/least_time.h"
#include "llmc/model/stage.h"

void Stage::use_attention(AttentionKind kind) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const AttentionActivations& a = pool_->activations.any().layers[0].attention;
    const Attention& call = layers_[0].attention();
    if (kind == AttentionKind::own_sm90 && sizes_.documents) {
        throw Error(ErrorKind::no_device, "no own-sm90 attention: it has no mask of documents",
                    "Use --attention own, or auto.");
    }
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
    std::vector<AttentionKind> candidates = attention_->candidates(shape);
    if (shape.masks_documents) std::erase(candidates, AttentionKind::own_sm90);
    FasterAttention fastest{AttentionKind::own, ""};
    if (candidates.size() == 1) return fastest;
    const AttentionActivations& a = pool_->activations.any().layers[0].attention;
    const Attention& call = layers_[0].attention();
    call.fill_randomly(a);
    double least = std::numeric_limits<double>::infinity();
    for (const AttentionKind kind : candidates) {
        try {
            Arena scratch;
            const AttentionChoice<floatX> attention(kind, shape, scratch);
            const double seconds = least_seconds(
                [&] {
                    attention.forward(call.forward_arguments(a), stream_);
                    attention.backward(call.backward_arguments(a), stream_);
                },
                stream_, 5);
            if (seconds < least) least = seconds, fastest.kind = kind;
        } catch (const Error& error) {   // own attention serves even if another fails
            if (error.kind() != ErrorKind::no_device) throw;
            CUDA_CHECK(cudaStreamSynchronize(stream_));
            if (kind == AttentionKind::library) fastest.library_failed = error.message();
        }
    }
    return fastest;
}

std::optional<RingTimes> Stage::time_ring() {
    if (options_.place.mesh.cp == options_.ulysses) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const AttentionActivations& a = pool_->activations.any().layers[0].attention;
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
