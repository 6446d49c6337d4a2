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

// A rank's part of one micro-batch on the host: tokens and targets, (B, T); a negative target has no loss. `starts` is
// empty unless documents are masked. Then it says where the document of each token begins in its sequence
// (document_starts), for the tokens that attention has on this rank, (B, T x ulysses). It is 0, one document per
// sequence, until a reader fills it in.
struct MicroBatch {
    std::span<std::int32_t> tokens, targets, starts = {};
};

// Document masks of a micro-batch on the device; null unless documents are masked.
struct DocumentsView {
    FirstKeys first_keys;              // (ring steps, B, T x ulysses)
    FirstKeys sliding_keys;            // first_keys, or later where the window of a layer that slides begins later
    const int* positions = nullptr;    // (B, T) position of each token in its document
    TokenGroupsView position_groups;   // groups of `positions`, if positions are learned
};

// One micro-batch on the device. Tokens and targets are (B, T).
struct Batch {
    const int* tokens = nullptr;
    const int* targets = nullptr;   // negative: this position has no loss
    TokenGroupsView groups;         // tokens by value; only backward reads them
    DocumentsView documents;
};

// Room for document masks, for micro-batches of the same number of tokens. `starts` is 0 if documents are not masked.
struct DocumentRoom {
    std::size_t starts = 0, ring_steps = 1;   // elements of MicroBatch::starts; steps of the ring
    int learned_positions = 0;                // learned positions, for groups of them in backward; 0: no groups
    std::int64_t window = 0;                  // keys that layers that slide see; 0: none slides
};

// Device memory for one micro-batch, refilled from the host. An upload is staged in one of two pinned buffers in turn,
// so the host waits for the device only if it is two uploads ahead.
class BatchBuffer {
public:
    // Only the tokens [first_token, first_token + vocab_size) are grouped: this rank's part of the vocabulary.
    BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size, int first_token = 0,
                const DocumentRoom& documents = {});
    // Uploads at most B x T tokens, and as many targets or none (sampling). Ids must be checked already: token < V, and
    // target < V.
    void upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream) {
        upload(tokens, targets, {}, {}, static_cast<std::int64_t>(tokens.size()), stream);
    }
    // Uploads this rank's part of B sequences whose documents are masked. `T`: tokens of a whole sequence; `cut`: how
    // ranks share them.
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
    DeviceBuffer<int> tokens_, targets_, groups_, first_keys_, sliding_keys_, positions_, position_groups_;
    std::vector<std::int64_t> step_pairs_, sliding_pairs_;
    std::array<Staging, 2> staging_;
    std::size_t next_staging_ = 0;
    Batch batch_;
};
