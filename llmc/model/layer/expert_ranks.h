// Exchanges of a mixture of experts between ranks; one device does nothing there. A mixture works in the residual
// region: under sequence parallelism on this rank's rows alone.
//
// Experts may be dealt out to several ranks, each with the same number of neighbouring experts. Then the rows of a
// rank's tokens go to the ranks that hold their experts, and the outputs come back: dispatch and combine. A sender
// orders its rows by expert, then by token. A holder orders them by expert, then by sender, then by token: as one
// device would. Rows travel in chunks of neighbouring experts of each holder, so that one chunk's exchange runs beside
// the work on another; what is computed, and in which order an element is summed, does not depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "llmc/base/dtype.h"
#include "llmc/kernels/experts/row_sequences.h"
#include "llmc/model/memory/activations.h"

class ExpertRanks {
public:
    virtual ~ExpertRanks() = default;

    // Maps each of this rank's rows of the residual region to its sequence of the micro-batch.
    virtual RowSequences sequences(const RankSizes& sizes) const { return {sizes.T, sizes.rows(), sizes.rows(), 0}; }
    // Adds up the counts of all ranks that share the micro-batch's sequences.
    virtual void add_over_sequences(std::int32_t* /*counts*/, std::size_t /*n*/, cudaStream_t) {}

    // ---- for tests that replay choices. replays() returns true if the test gives the experts of each row, (rows, K),
    // in place of the router; has_chosen() shows it the experts chosen, and the logits (rows, E).
    virtual bool replays(std::int32_t* /*index*/, int /*layer*/, const RankSizes&, cudaStream_t) { return false; }
    virtual void has_chosen(const std::int32_t* /*index*/, const float* /*logits*/, int /*layer*/, const RankSizes&,
                            cudaStream_t) {}

    // ---- if experts are dealt out. `choice`: address of the indices of the chosen experts, which names an exchange
    // from forward to the end of backward.

    virtual int chunks() const { return 1; }
    // Experts of this rank that make up a chunk, and their rows.
    struct HeldChunk {
        int first_expert, experts, first_row, rows;
    };
    virtual HeldChunk held(const void* /*choice*/, int /*chunk*/) { return {}; }
    virtual int held_rows(const void* /*choice*/) { return 0; }

    // Makes exchanges that are started from now on come after the work given to `stream` so far.
    virtual void follow(cudaStream_t /*stream*/) {}
    // Starts to tell all ranks how many rows go to which expert. offsets (E + 1): where each expert's rows begin among
    // the `rows` rows of this rank's tokens; counts: scratch, (ranks, E). Whatever asks for held rows, or sends rows,
    // lets the host wait for the counts: it must know how much it sends.
    virtual void begin_exchange(const void* /*choice*/, const std::int32_t* /*offsets*/, int /*rows*/, int /*E*/,
                                std::int32_t* /*counts*/) {}
    // Makes `stream` wait for the counts of the exchange that was begun last, as the host will: so the wait is
    // measured.
    virtual void wait_for_counts(cudaStream_t /*stream*/) {}
    // Copies where the rows of each of this rank's experts begin, counted from the chunk's first row; those of a chunk
    // are experts + 1 numbers, from number (first_expert + chunk) on.
    virtual void copy_held_offsets(std::int32_t* /*offsets*/, const void* /*choice*/, cudaStream_t) {}

    struct SentRows {
        void* to;
        const void* from;
        int width;   // elements of a row
        DType type;
    };
    template <class T>
    static SentRows rows(T* to, const T* from, int width) {
        return {to, from, width, dtype_of<T>};
    }
    // Starts sending rows of this rank's tokens to the ranks that hold their experts, all chunks one after another;
    // combine() starts sending a chunk's rows back.
    void dispatch(std::initializer_list<SentRows> rows, const void* choice) {
        for (int chunk = 0; chunk < chunks(); chunk++) start(rows, choice, chunk, false);
    }
    void combine(std::initializer_list<SentRows> rows, const void* choice, int chunk) {
        start(rows, choice, chunk, true);
    }
    // Makes `stream` wait for the exchange of a chunk that was started last, and for all before it.
    virtual void wait(int /*chunk*/, cudaStream_t /*stream*/) {}

    virtual void start(std::span<const SentRows> /*rows*/, const void* /*choice*/, int /*chunk*/, bool /*back*/) {}
};
