// One micro-batch on the device, and the memory it is uploaded to.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/rows/token_groups.h"
#include "llmc/mesh/document_cut.h"

// One micro-batch on the host, a rank's part of it: tokens, and targets, negative where there is no loss, (B, T). Where
// documents do not see each other, also where that of each token begins in its sequence (document_starts), of the
// tokens that attention has here, (B, T x ulysses): 0, one document a sequence, until somebody says otherwise. Else
// empty.
struct MicroBatch {
    std::span<std::int32_t> tokens, targets, starts = {};
};

// The documents of a micro-batch on the device. Null where they are not masked.
struct DocumentsView {
    FirstKeys first_keys;              // (ring steps, B, T x ulysses)
    const int* positions = nullptr;    // (B, T) of each token in its document
    TokenGroupsView position_groups;   // of these, where positions are learned
};

// One micro-batch on the device. Tokens and targets are (B, T).
struct Batch {
    const int* tokens = nullptr;
    const int* targets = nullptr;   // negative: this position has no loss
    TokenGroupsView groups;         // of the tokens; only backward reads them
    DocumentsView documents;
};

// Room for masks of documents, for micro-batches of the same number of tokens; none: they are not masked.
struct DocumentRoom {
    std::size_t starts = 0, ring_steps = 1;   // of MicroBatch::starts
    int learned_positions = 0;                // of which gradients are grouped
};

// Device memory for one micro-batch, refilled from the host. The host does not wait for the device unless it is two
// uploads ahead: what is uploaded is kept in pinned memory, of which each buffer has two pieces in turns.
class BatchBuffer {
public:
    // Groups are made of the tokens from `first_token` on, as many as `vocab_size`.
    BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size, int first_token = 0,
                const DocumentRoom& documents = {});
    // Both at most (B x T); `targets` may be empty (sampling). Ids must be checked already: token < V, and target < V.
    void upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream) {
        upload(tokens, targets, {}, {}, static_cast<std::int64_t>(tokens.size()), stream);
    }
    // With documents, of B whole sequences of T tokens that ranks share as the cut says.
    void upload(std::span<const int> tokens, std::span<const int> targets, std::span<const int> starts,
                const ContextCut& cut, std::int64_t T, cudaStream_t stream);
    const Batch& batch() const { return batch_; }

private:
    struct Staging {
        PinnedBuffer<int> values;   // tokens, targets, groups, documents
        OwnedEvent copied;
    };
    int vocab_size_, first_token_;
    DocumentRoom documents_;
    DeviceBuffer<int> tokens_, targets_, groups_, first_keys_, positions_, position_groups_;
    std::vector<char> hidden_steps_;
    std::array<Staging, 2> staging_;
    std::size_t next_staging_ = 0;
    Batch batch_;
};
