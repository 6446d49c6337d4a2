#include "llmc/model/batch.h"

#include <algorithm>

static std::size_t positions_of(int B, int T) { return static_cast<std::size_t>(B) * static_cast<std::size_t>(T); }

static std::size_t staging_size(std::size_t positions, const DocumentRoom& documents) {
    const std::size_t batch = 2 * positions + token_groups_capacity(positions);
    if (documents.starts == 0) return batch;
    return batch + (documents.window > 0 ? 2 : 1) * documents.ring_steps * documents.starts + positions +
           (documents.learned_positions > 0 ? token_groups_capacity(positions) : 0);
}

// Returns memory for what travels to the device; none if the arena only counts.
static PinnedBuffer<int> staging_memory(const Arena& arena, std::size_t positions, const DocumentRoom& documents) {
    return PinnedBuffer<int>(arena.counts() ? 0 : staging_size(positions, documents));
}

BatchBuffer::BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size, int first_token,
                         const DocumentRoom& documents)
    : vocab_size_(static_cast<int>(vocab_size)),
      first_token_(first_token),
      documents_(documents),
      staging_{Staging{staging_memory(arena, positions_of(B, T), documents), {}},
               Staging{staging_memory(arena, positions_of(B, T), documents), {}}} {
    const std::size_t positions = positions_of(B, T);
    tokens_ = arena.allocate<int>("batch/tokens", positions);
    targets_ = arena.allocate<int>("batch/targets", positions);
    groups_ = arena.allocate<int>("batch/token_groups", token_groups_capacity(positions));
    if (documents.starts == 0) return;
    first_keys_ = arena.allocate<int>("batch/first_keys", documents.ring_steps * documents.starts);
    if (documents.window > 0)
        sliding_keys_ = arena.allocate<int>("batch/sliding_keys", documents.ring_steps * documents.starts);
    positions_ = arena.allocate<int>("batch/positions", positions);
    if (documents.learned_positions == 0) return;
    position_groups_ = arena.allocate<int>("batch/position_groups", token_groups_capacity(positions));
}

void BatchBuffer::upload(std::span<const int> tokens, std::span<const int> targets, std::span<const int> starts,
                         const ContextCut& cut, std::int64_t T, cudaStream_t stream) {
    ENSURE(tokens.size() <= tokens_.size(), "a batch of ", tokens.size(), " tokens, room for ", tokens_.size());
    ENSURE(targets.empty() || targets.size() == tokens.size(), targets.size(), " targets for ", tokens.size(),
           " tokens");
    ENSURE(starts.size() <= documents_.starts, starts.size(), " starts of documents, room for ", documents_.starts);
    const TokenGroups groups = group_tokens(tokens, vocab_size_, first_token_);
    const Staging& staging = staging_[next_staging_++ % staging_.size()];
    wait_for(staging.copied.get());   // the upload before last has left it
    std::span<int> room = staging.values.values();
    auto send = [&](const DeviceBuffer<int>& to, std::span<const int> values) {
        std::copy(values.begin(), values.end(), room.begin());
        to.upload(room.first(values.size()), stream);
        room = room.subspan(values.size());
    };
    send(tokens_, tokens);
    send(targets_, targets);
    send(groups_, groups.data);
    batch_ = {tokens_.data(), targets.empty() ? nullptr : targets_.data(), groups.view(groups_.data()), {}};
    // one document per sequence needs no mask
    if (std::ranges::any_of(starts, [](int start) { return start > 0; })) {
        const std::int64_t n = T / cut.ring_size(), B = static_cast<std::int64_t>(starts.size()) / n;
        auto send_first_keys = [&](const DeviceBuffer<int>& to, std::vector<std::int64_t>& pairs,
                                   std::span<const int> from) {
            std::vector<int> first(starts.size() * static_cast<std::size_t>(cut.ring_size()));
            first_keys(first, from, cut, T);
            pairs = step_pairs(first, cut, B);
            send(to, first);
            return FirstKeys{to.data(), n, pairs.data()};
        };
        DocumentsView& documents = batch_.documents;
        documents.first_keys = documents.sliding_keys = send_first_keys(first_keys_, step_pairs_, starts);
        if (const std::int64_t window = documents_.window; window > 0 && window < T) {
            documents.sliding_keys =
                send_first_keys(sliding_keys_, sliding_pairs_, window_starts(starts, cut, T, window));
        }
        std::vector<int> positions(tokens.size());
        document_positions(positions, starts, cut, T);
        send(positions_, positions);
        batch_.documents.positions = positions_.data();
        if (documents_.learned_positions > 0) {
            const TokenGroups of_positions = group_tokens(positions, documents_.learned_positions);
            send(position_groups_, of_positions.data);
            batch_.documents.position_groups = of_positions.view(position_groups_.data());
        }
    }
    staging.copied.record(stream);
}
