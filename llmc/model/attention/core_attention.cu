#include "llmc/model/attention/core_attention.h"

#include <limits>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/kernels/rows/embedding.cuh"

CoreAttention::CoreAttention(const CoreAttentionOptions& options, const RankSizes& sizes,
                             const AttentionActivations& idle, const Workspace& workspace, Arena& arena,
                             cudaStream_t stream)
    : cut_(options.cut),
      reuses_(options.reusable),
      idle_(idle),
      workspace_(workspace),
      arena_(arena),
      stream_(stream),
      sizes_(sizes),
      choice_(options.kind, sizes.attention(), arena,
              {options.cut.ring_size() > 1, options.backward, options.other_shapes}) {
    if (options.ring) ring_.emplace(*options.ring, arena, stream);
    if (options.ulysses) ulysses_.emplace(*options.ulysses, arena, stream);
    if (options.kind != AttentionKind::auto_) use(options.kind);
}

void CoreAttention::set_sizes(const RankSizes& sizes) {
    ENSURE(sizes.ulysses == cut_.ulysses && sizes.NH % cut_.ulysses == 0 &&
               (sizes.KV % cut_.ulysses == 0 || cut_.ulysses % sizes.KV == 0),
           sizes.NH, " / ", sizes.KV, " heads over groups of ", cut_.ulysses, " ranks; the stage has groups of ",
           sizes.ulysses);
    sizes_ = sizes;
    if (ring_) ring_->reserve(sizes.attention(), reuses_ ? reusable_bytes(sizes) : std::vector<std::size_t>{});
    if (ulysses_) ulysses_->reserve(heads_of_qkv());
    upload_window();
    if (cut_.cp == 1) return;
    const std::vector<int> positions = token_positions(token_ranges(cut_, std::int64_t{sizes.T} * cut_.cp));
    if (positions.size() > positions_.size()) {
        positions_ = arena_.allocate<int>("context/positions", positions.size());
    }
    positions_.upload(positions, stream_);
}

void CoreAttention::upload_window() {
    const bool has_them = window_keys_.first != nullptr && window_B_ == sizes_.B && window_T_ == sizes_.whole_T;
    if (has_them && sizes_.slides()) return;
    window_keys_ = {};
    if (!sizes_.slides()) return;
    window_B_ = sizes_.B, window_T_ = sizes_.whole_T;
    const std::int64_t T = sizes_.whole_T, n = T / cut_.ring_size();
    const std::vector<std::int32_t> whole(static_cast<std::size_t>(sizes_.B * n), 0);   // one document per sequence
    std::vector<std::int32_t> first(whole.size() * static_cast<std::size_t>(cut_.ring_size()));
    first_keys(first, window_starts(whole, cut_, T, sizes_.model.window), cut_, T);
    step_pairs_ = step_pairs(first, cut_, sizes_.B);
    if (first.size() > window_first_.size()) {
        window_first_ = arena_.allocate<int>("attention/window", first.size());
    }
    window_first_.upload(first, stream_);
    window_keys_ = {window_first_.data(), n, step_pairs_.data()};
}

Positions CoreAttention::positions(const Batch& batch) const {
    if (batch.documents.positions != nullptr) return {.of_rows = batch.documents.positions};
    return {.list = positions_.data()};
}

// ---------------------------------------------------------------------------------------------------------------------
// Arguments of the kernels

// Returns the shape with the documents of a micro-batch, and with the window of a layer that slides.
AttentionShape CoreAttention::shape(const Batch& batch, bool slides) const {
    AttentionShape shape = sizes_.attention();
    const bool documents = batch.documents.first_keys.first != nullptr;
    shape.documents = !slides ? batch.documents.first_keys : documents ? batch.documents.sliding_keys : window_keys_;
    return shape;
}

AttentionForward<floatX> CoreAttention::forward_arguments(const AttentionActivations& a,
                                                          const AttentionShape& s) const {
    const floatX* const qkv = a.qkv;
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {contiguous_heads(attended(a), s.Tq, s.NH, s.HS), a.lse, part(0), part(1), part(2), s};
}

AttentionBackward<floatX> CoreAttention::backward_arguments(const AttentionActivations& a,
                                                            const AttentionShape& s) const {
    const AttentionScratch& scratch = workspace_.layer.attention;
    const floatX *qkv = a.qkv, *out = attended(a), *dout = workspace_.datty;
    auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {.dq = part(scratch.dqkv, 0),
            .dk = part(scratch.dqkv, 1),
            .dv = part(scratch.dqkv, 2),
            .delta = scratch.delta,
            .dout = contiguous_heads(dout, s.Tq, s.NH, s.HS),
            .out = contiguous_heads(out, s.Tq, s.NH, s.HS),
            .lse = a.lse,
            .q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .shape = s};
}

Ulysses::Sizes CoreAttention::heads_of_qkv() const {
    const std::int64_t q = std::int64_t{sizes_.NH} * sizes_.HS, kv = std::int64_t{sizes_.KV} * sizes_.HS;
    return {sizes_.B, sizes_.T, {q, kv, kv}, std::max(cut_.ulysses / sizes_.KV, 1)};
}
Ulysses::Sizes CoreAttention::heads_of_output() const {
    return {sizes_.B, sizes_.T, {std::int64_t{sizes_.NH} * sizes_.HS}};
}

// ---------------------------------------------------------------------------------------------------------------------
// Training

void CoreAttention::forward(const AttentionActivations& a, const Batch& batch, bool slides) {
    const AttentionForward<floatX> arguments = forward_arguments(a, shape(batch, slides));
    if (ulysses_) ulysses_->to_heads(a.qkv, a.qkv, heads_of_qkv());
    if (ring_) {
        ring_->forward(choice_, arguments);
    } else {
        choice_.forward(arguments, stream_);
    }
    if (ulysses_) ulysses_->to_tokens(a.atty, a.attended, heads_of_output());
}

void CoreAttention::backward(const AttentionActivations& a, const Batch& batch, const ReusableMemory& reusable,
                             WeightGradientQueue& queue, bool slides) {
    const AttentionBackward<floatX> arguments = backward_arguments(a, shape(batch, slides));
    floatX *const datty = workspace_.datty, *const dqkv = workspace_.layer.attention.dqkv;
    if (ulysses_) ulysses_->to_heads(datty, datty, heads_of_output());
    if (ring_) {
        ring_->backward(choice_, arguments, reusable, queue);
    } else {
        choice_.backward(arguments, stream_);
    }
    if (ulysses_) ulysses_->to_tokens(dqkv, dqkv, heads_of_qkv());
}

// ---------------------------------------------------------------------------------------------------------------------
// The choice of kernels

void CoreAttention::use(AttentionKind kind) {
    const bool stays_own = kind == AttentionKind::own && choice_.chosen() == kind;   // nothing is freed, nor planned
    if (!stays_own) CUDA_CHECK(cudaStreamSynchronize(stream_));
    try {
        choice_.take(kind, sizes_.attention());
        std::vector<AttentionShape> shapes = choice_.other_shapes();
        shapes.push_back(sizes_.attention());
        for (const AttentionShape& each : shapes) {
            choice_.prepare(forward_arguments(idle_, each), backward_arguments(idle_, each));
        }
    } catch (...) {
        choice_.take(AttentionKind::own, sizes_.attention());
        throw;
    }
}

void CoreAttention::fill_randomly(const AttentionActivations& a) const {
    const std::int64_t elements = std::int64_t{sizes_.rows()} * sizes_.NH * sizes_.HS;
    fill_normal(a.qkv, std::int64_t{sizes_.rows()} * sizes_.attended_width(), 1.0f, 1, GlobalSpan{}, stream_);
    fill_normal(workspace_.datty, elements, 1.0f, 2, GlobalSpan{}, stream_);
}

CoreAttention::Fastest CoreAttention::fastest() const {
    const AttentionShape shape = sizes_.attention();
    const std::vector<AttentionKind> candidates = choice_.candidates(shape);
    Fastest fastest{AttentionKind::own, ""};
    if (candidates.size() == 1) return fastest;
    fill_randomly(idle_);
    double least = std::numeric_limits<double>::infinity();
    for (const AttentionKind kind : candidates) {
        try {
            Arena scratch;
            const AttentionChoice<floatX> attention(kind, shape, scratch);
            const double seconds = least_seconds(
                [&] {
                    attention.forward(forward_arguments(idle_, shape), stream_);
                    attention.backward(backward_arguments(idle_, shape), stream_);
                },
                stream_, 5);
            if (clearly_faster(seconds, least)) least = seconds, fastest.kind = kind;
        } catch (const Error& error) {   // own attention serves even if another fails
            if (error.kind() != ErrorKind::no_device) throw;
            CUDA_CHECK(cudaStreamSynchronize(stream_));
            if (kind == AttentionKind::library) fastest.library_failed = error.message();
        }
    }
    return fastest;
}

std::optional<RingTimes> CoreAttention::time_ring() {
    if (!ring_) return std::nullopt;
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    fill_randomly(idle_);
    const RingStep step = ring_->step(choice_, forward_arguments(idle_, sizes_.attention()));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    constexpr int calls = 2;
    const double block_s = least_seconds(step.block, stream_, calls),
                 hop_s = least_seconds(step.hop, step.traffic, calls);
    return RingTimes{hop_s, block_s};
}
