#include "llmc/model/batch.h"

#include <algorithm>

static std::size_t staging_size(int B, int T) {
    const std::size_t positions = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    return 2 * positions + token_groups_capacity(positions);
}

BatchBuffer::BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size, int first_token)
    : vocab_size_(static_cast<int>(vocab_size)),
      first_token_(first_token),
      staging_{Staging{PinnedBuffer<int>(staging_size(B, T)), {}}, Staging{PinnedBuffer<int>(staging_size(B, T)), {}}} {
    const std::size_t positions = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    tokens_ = arena.allocate<int>("batch/tokens", positions);
    targets_ = arena.allocate<int>("batch/targets", positions);
    groups_ = arena.allocate<int>("batch/token_groups", token_groups_capacity(positions));
}

void BatchBuffer::upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream) {
    ENSURE(tokens.size() <= tokens_.size(), "a batch of ", tokens.size(), " tokens, room for ", tokens_.size());
    ENSURE(targets.empty() || targets.size() == tokens.size(), targets.size(), " targets for ", tokens.size(),
           " tokens");
    const TokenGroups groups = group_tokens(tokens, vocab_size_, first_token_);
    const Staging& staging = staging_[next_staging_++ % staging_.size()];
    wait_for(staging.copied.get());   // what it held two uploads ago has left
    std::span<int> room = staging.values.values();
    auto send = [&](const DeviceBuffer<int>& to, std::span<const int> values) {
        std::copy(values.begin(), values.end(), room.begin());
        to.upload(room.first(values.size()), stream);
        room = room.subspan(values.size());
    };
    send(tokens_, tokens);
    send(targets_, targets);
    send(groups_, groups.data);
    staging.copied.record(stream);
    batch_ = {tokens_.data(), targets.empty() ? nullptr : targets_.data(), groups.view(groups_.data())};
}
