// Cut points of a mixture of experts, beside those of all sublayers (cut_points.h); one device does nothing there. A
// mixture works in the residual region: under sequence parallelism on this rank's rows alone.
//
// Experts may be dealt out to several ranks, each with the same number of neighbouring experts. Then the rows of a
// rank's tokens go to the ranks that hold their experts, and the outputs come back: dispatch and combine. A sender
// orders its rows by expert, then by token. A holder orders them by expert, then by sender, then by token: as one
// device would.
#pragma once

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

    // Tells all ranks how many rows go to which expert. offsets (E + 1): where each expert's rows begin among the
    // `rows` rows of this rank's tokens; counts: scratch, (ranks, E). The host waits for the stream: it must know how
    // much it sends.
    virtual void begin_exchange(const void* /*choice*/, const std::int32_t* /*offsets*/, int /*rows*/, int /*E*/,
                                std::int32_t* /*counts*/, cudaStream_t) {
        ENSURE(false, "an exchange of one device");
    }
    // Copies where the rows of each of this rank's experts begin, (E / ranks + 1).
    virtual void copy_held_offsets(std::int32_t* /*offsets*/, const void* /*choice*/, cudaStream_t) {}
    virtual int held_rows(const void* /*choice*/) const { return 0; }

    // Sends rows of `width` elements of this rank's tokens to the ranks that hold their experts; combine() sends them
    // back.
    template <class T>
    void dispatch(T* held, const T* own, int width, const void* choice, cudaStream_t stream) {
        exchange({held, own, width, dtype_of<T>, false}, choice, stream);
    }
    template <class T>
    void combine(T* own, const T* held, int width, const void* choice, cudaStream_t stream) {
        exchange({own, held, width, dtype_of<T>, true}, choice, stream);
    }

    struct Rows {
        void* to;
        const void* from;
        int width;
        DType type;
        bool back;
    };
    virtual void exchange(const Rows& /*rows*/, const void* /*choice*/, cudaStream_t) {}
};
