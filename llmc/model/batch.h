// One micro-batch on the device, and the memory it is uploaded to.
#pragma once

#include <array>
#include <span>

#include "llmc/base/arena.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/rows/token_groups.h"

// One micro-batch on the device. Tokens and targets are (B, T).
struct Batch {
    const int* tokens = nullptr;
    const int* targets = nullptr;   // negative: this position has no loss
    TokenGroupsView groups;         // of the tokens; only backward reads them
};

// Device memory for one micro-batch, refilled from the host. The host does not wait for the device unless it is two
// uploads ahead: what is uploaded is kept in pinned memory, of which each buffer has two pieces in turns.
class BatchBuffer {
public:
    // Groups are made of the tokens from `first_token` on, as many as `vocab_size`.
    BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size, int first_token = 0);
    // Both at most (B x T); `targets` may be empty (sampling). Ids must be checked already: token < V, and target < V.
    void upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream);
    const Batch& batch() const { return batch_; }

private:
    struct Staging {
        PinnedBuffer<int> values;   // tokens, targets, groups
        OwnedEvent copied;
    };
    int vocab_size_, first_token_;
    DeviceBuffer<int> tokens_, targets_, groups_;
    std::array<Staging, 2> staging_;
    std::size_t next_staging_ = 0;
    Batch batch_;
};
