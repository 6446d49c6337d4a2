#include "llmc/parallel/context/context_parallel.h"

#include "llmc/kernels/rows/embedding.cuh"

namespace {

// Makes the group of the cp ranks `members` of this rank's sequence; null for one rank.
Communicator* group_of(World& world, const char* name, const std::vector<int>& members) {
    if (members.size() == 1) return nullptr;
    std::vector<int> ranks;
    for (int cp : members) {
        MeshCoordinates at = world.at();
        at.cp = cp;
        ranks.push_back(rank_of(world.mesh(), at));
    }
    return world.group(name, ranks);
}

}   // namespace

ContextParallel::ContextParallel(World& world, int ulysses, Arena& arena, cudaStream_t stream, bool reusable)
    : cut_{world.mesh().cp, ulysses, world.at().cp},
      arena_(arena),
      stream_(stream),
      reuses_(reusable),
      ring_group_(group_of(world, "cp ring", cut_.ring_members())),
      ulysses_group_(group_of(world, "cp ulysses", cut_.ulysses_members())) {
    if (ring_group_ != nullptr) ring_.emplace(*ring_group_, arena, stream);
    if (ulysses_group_ != nullptr) ulysses_.emplace(*ulysses_group_, arena, stream);
}

void ContextParallel::set_sizes(const RankSizes& sizes) {
    ENSURE(sizes.ulysses == cut_.ulysses && sizes.NH % cut_.ulysses == 0 &&
               (sizes.KV % cut_.ulysses == 0 || cut_.ulysses % sizes.KV == 0),
           sizes.NH, " / ", sizes.KV, " heads over groups of ", cut_.ulysses, " ranks; the stage has groups of ",
           sizes.ulysses);
    sizes_ = sizes;
    if (ring_) ring_->reserve(sizes.attention(), reuses_ ? reusable_bytes(sizes) : std::vector<std::size_t>{});
    if (ulysses_) ulysses_->reserve(heads_of_qkv());
    const std::vector<int> positions = token_positions(token_ranges(cut_, std::int64_t{sizes.T} * cut_.cp));
    if (positions.size() > positions_.size()) {
        positions_ = arena_.allocate<int>("context/positions", positions.size());
    }
    positions_.upload(positions, stream_);
}

Positions ContextParallel::positions() const { return {0, positions_.data()}; }

Ulysses::Sizes ContextParallel::heads_of_qkv() const {
    const std::int64_t q = std::int64_t{sizes_.NH} * sizes_.HS, kv = std::int64_t{sizes_.KV} * sizes_.HS;
    return {sizes_.B, sizes_.T, {q, kv, kv}, std::max(cut_.ulysses / sizes_.KV, 1)};
}
Ulysses::Sizes ContextParallel::heads_of_output() const {
    return {sizes_.B, sizes_.T, {std::int64_t{sizes_.NH} * sizes_.HS}};
}

void ContextParallel::attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments,
                             floatX* qkv, floatX* out, cudaStream_t stream) {
    ENSURE(stream == stream_, "attention on another stream than the one it shares sequences on");
    if (ulysses_) ulysses_->to_heads(qkv, qkv, heads_of_qkv());
    if (ring_) {
        ring_->forward(attention, arguments);
    } else {
        attention.forward(arguments, stream);
    }
    if (ulysses_) ulysses_->to_tokens(out, arguments.out.data, heads_of_output());
}

void ContextParallel::attend_backward(const AttentionChoice<floatX>& attention,
                                      const AttentionBackward<floatX>& arguments, floatX* dqkv, floatX* dout,
                                      const ReusableMemory& reusable, WeightGradientQueue& queue, cudaStream_t stream) {
    ENSURE(stream == stream_, "attention on another stream than the one it shares sequences on");
    if (ulysses_) ulysses_->to_heads(dout, dout, heads_of_output());
    if (ring_) {
        ring_->backward(attention, arguments, reusable, queue);
    } else {
        attention.backward(arguments, stream);
    }
    if (ulysses_) ulysses_->to_tokens(dqkv, dqkv, heads_of_qkv());
}
