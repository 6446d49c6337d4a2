#include "llmc/model/context/context_parallel.h"

#include "llmc/kernels/rows/embedding.cuh"

ContextParallel::ContextParallel(const ContextCut& cut, Communicator* ring_group, Communicator* ulysses_group,
                                 Arena& arena, cudaStream_t stream, bool reusable)
    : cut_(cut), arena_(arena), stream_(stream), reuses_(reusable) {
    if (ring_group) ring_.emplace(*ring_group, arena, stream);
    if (ulysses_group) ulysses_.emplace(*ulysses_group, arena, stream);
}

void ContextParallel::set_sizes(const RankSizes& sizes) {
    ENSURE(sizes.ulysses == cut_.ulysses && sizes.NH % cut_.ulysses == 0 &&
               (sizes.KV % cut_.ulysses == 0 || cut_.ulysses % sizes.KV == 0),
           sizes.NH, " / ", sizes.KV, " heads over groups of ", cut_.ulysses, " ranks; the stage has groups of ",
           sizes.ulysses);
    sizes_ = sizes;
    if (ring_) ring_->reserve(sizes.attention(), reuses_ ? reusable_bytes(sizes) : std::vector<std::size_t>{});
    if (ulysses_) ulysses_->reserve(heads_of_qkv());
    if (cut_.cp == 1) return;
    const std::vector<int> positions = token_positions(token_ranges(cut_, std::int64_t{sizes.T} * cut_.cp));
    if (positions.size() > positions_.size()) {
        positions_ = arena_.allocate<int>("context/positions", positions.size());
    }
    positions_.upload(positions, stream_);
}

Positions ContextParallel::positions(const Batch& batch) const {
    if (batch.documents.positions != nullptr) return {.of_rows = batch.documents.positions};
    return {.list = positions_.data()};
}

Ulysses::Sizes ContextParallel::heads_of_qkv() const {
    const std::int64_t q = std::int64_t{sizes_.NH} * sizes_.HS, kv = std::int64_t{sizes_.KV} * sizes_.HS;
    return {sizes_.B, sizes_.T, {q, kv, kv}, std::max(cut_.ulysses / sizes_.KV, 1)};
}
Ulysses::Sizes ContextParallel::heads_of_output() const {
    return {sizes_.B, sizes_.T, {std::int64_t{sizes_.NH} * sizes_.HS}};
}

void ContextParallel::attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments,
                             floatX* qkv, floatX* out) {
    if (ulysses_) ulysses_->to_heads(qkv, qkv, heads_of_qkv());
    if (ring_) {
        ring_->forward(attention, arguments);
    } else {
        attention.forward(arguments, stream_);
    }
    if (ulysses_) ulysses_->to_tokens(out, arguments.out.data, heads_of_output());
}

void ContextParallel::attend_backward(const AttentionChoice<floatX>& attention,
                                      const AttentionBackward<floatX>& arguments, floatX* dqkv, floatX* dout,
                                      const ReusableMemory& reusable, WeightGradientQueue& queue) {
    if (ulysses_) ulysses_->to_heads(dout, dout, heads_of_output());
    if (ring_) {
        ring_->backward(attention, arguments, reusable, queue);
    } else {
        attention.backward(arguments, stream_);
    }
    if (ulysses_) ulysses_->to_tokens(dqkv, dqkv, heads_of_qkv());
}

std::optional<RingStep> ContextParallel::ring_step(const AttentionChoice<floatX>& attention,
                                                   const AttentionForward<floatX>& arguments) {
    if (!ring_) return std::nullopt;
    return ring_->step(attention, arguments);
}
