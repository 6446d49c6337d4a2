#include "llmc/model/stage/stage_attention.h"

#include <limits>

#include "llmc/kernels/least_time.h"

void StageAttention::use(AttentionKind kind) {
    const bool stays_own = kind == AttentionKind::own && choice_.chosen() == kind;   // nothing is freed, nor planned
    if (!stays_own) CUDA_CHECK(cudaStreamSynchronize(tools_.stream));
    try {
        choice_.take(kind, tools_.sizes.attention());
        std::vector<AttentionShape> shapes = choice_.other_shapes();
        shapes.push_back(tools_.sizes.attention());
        for (const AttentionShape& shape : shapes) {
            choice_.prepare(layer_.forward_arguments(a_, shape), layer_.backward_arguments(a_, shape));
        }
    } catch (...) {
        choice_.take(AttentionKind::own, tools_.sizes.attention());
        throw;
    }
}

StageAttention::Fastest StageAttention::fastest() const {
    const AttentionShape shape = tools_.sizes.attention();
    const cudaStream_t stream = tools_.stream;
    const std::vector<AttentionKind> candidates = choice_.candidates(shape);
    Fastest fastest{AttentionKind::own, ""};
    if (candidates.size() == 1) return fastest;
    layer_.fill_randomly(a_);
    double least = std::numeric_limits<double>::infinity();
    for (const AttentionKind kind : candidates) {
        try {
            Arena scratch;
            const AttentionChoice<floatX> attention(kind, shape, scratch);
            const double seconds = least_seconds(
                [&] {
                    attention.forward(layer_.forward_arguments(a_, shape), stream);
                    attention.backward(layer_.backward_arguments(a_, shape), stream);
                },
                stream, 5);
            if (clearly_faster(seconds, least)) least = seconds, fastest.kind = kind;
        } catch (const Error& error) {   // own attention serves even if another fails
            if (error.kind() != ErrorKind::no_device) throw;
            CUDA_CHECK(cudaStreamSynchronize(stream));
            if (kind == AttentionKind::library) fastest.library_failed = error.message();
        }
    }
    return fastest;
}

std::optional<RingTimes> StageAttention::time_ring() const {
    if (!tools_.sizes.has_ring()) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(tools_.stream));
    layer_.fill_randomly(a_);
    const std::optional<RingStep> step =
        tools_.context.ring_step(choice_, layer_.forward_arguments(a_, tools_.sizes.attention()));
    if (!step) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(tools_.stream));
    constexpr int calls = 2;
    const double block_s = least_seconds(step->block, tools_.stream, calls),
                 hop_s = least_seconds(step->hop, step->traffic, calls);
    return RingTimes{hop_s, block_s};
}
