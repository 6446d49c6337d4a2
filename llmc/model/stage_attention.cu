// Own attention or the library's: taking one, and finding the faster one.
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/model/stage.h"

void Stage::use_attention(AttentionKind kind) {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const BlockActivations& a = pool_->activations.any().blocks[0];
    try {
        attention_->take(kind, sizes_.attention());
        attention_->prepare(blocks_[0].attention_forward(a),
                            blocks_[0].attention_backward(workspace_->rows_3c.data(), a));
    } catch (...) {
        attention_->take(AttentionKind::own, sizes_.attention());
        throw;
    }
}

Stage::FasterAttention Stage::faster_attention() {
    const AttentionShape shape = sizes_.attention();
    if (!attention_->refusal(shape).empty()) return {AttentionKind::own, ""};
    const BlockActivations& a = pool_->activations.any().blocks[0];
    const std::int64_t elements = std::int64_t{sizes_.rows()} * sizes_.NH * sizes_.HS;
    fill_normal(a.qkv, 3 * elements, 1.0f, 1, GlobalSpan{}, stream_);
    fill_normal(workspace_->rows_c.data(), elements, 1.0f, 2, GlobalSpan{}, stream_);
    auto measure = [&](AttentionKind kind) {
        Arena scratch;
        const AttentionChoice<floatX> attention(kind, shape, scratch);
        return least_seconds(
            [&] {
                attention.forward(blocks_[0].attention_forward(a), stream_);
                attention.backward(blocks_[0].attention_backward(workspace_->rows_3c.data(), a), stream_);
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
    const BlockActivations& a = pool_->activations.any().blocks[0];
    fill_normal(a.qkv, std::int64_t{3} * sizes_.rows() * sizes_.NH * sizes_.HS, 1.0f, 1, GlobalSpan{}, stream_);
    const std::optional<RingStep> step = tools_->cut_points.ring_step(*attention_, blocks_[0].attention_forward(a));
    if (!step) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    constexpr int calls = 2;
    const double block_s = least_seconds(step->block, stream_, calls),
                 hop_s = least_seconds(step->hop, step->traffic, calls);
    return RingTimes{hop_s, block_s};
}
