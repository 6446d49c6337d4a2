// Where parallelism enters a mixture of experts, beside the cut points of all sublayers (cut_points.h): one device does
// nothing there. A mixture works in the residual region: under sequence parallelism on this rank's rows alone.
//
// Where experts are dealt out to several ranks, each holding the same number of neighbouring ones, the rows of a rank's
// tokens go to the ranks that have their experts, and what these make of them comes back: dispatch and combine. A
// sender's rows are in the order of experts, of one expert in the order of tokens. A holder has them in the order of
// its experts, of one expert in the order of senders: the rows of each expert, and of each sender within them, in the
// order in which one device would have them.
#pragma once

#include "llmc/base/dtype.h"
#include "llmc/kernels/experts/row_sequences.h"
#include "llmc/model/activations.h"

class ExpertRanks {
public:
    virtual ~ExpertRanks() = default;

    // Which sequence of the micro-batch each of this rank's rows of the residual region belongs to.
    virtual RowSequences sequences(const RankSizes& sizes) const { return {sizes.T, sizes.rows(), sizes.rows(), 0}; }
    // Adds the counts of all ranks that share the micro-batch's sequences.
    virtual void add_over_sequences(std::int32_t* /*counts*/, std::size_t /*n*/, cudaStream_t) {}

    // ---- for tests that replay choices: whether they give the experts of each row, (rows, K), in place of the
    // router's; and what was chosen, by it or by them, from logits (rows, E).
    virtual bool replays(std::int32_t* /*index*/, int /*layer*/, const RankSizes&, cudaStream_t) { return false; }
    virtual void has_chosen(const std::int32_t* /*index*/, const float* /*logits*/, int /*layer*/, const RankSizes&,
                            cudaStream_t) {}

    // ---- where experts are dealt out. `choice`: where the indices of the chosen experts lie, by which an exchange is
    // known from forward to the end of backward.

    // Tells all ranks how many rows go where. offsets (E + 1): where, of all `rows` of this rank's tokens, those begin
    // that go to each expert; counts: scratch, (ranks, E). The host waits for the stream: it must know what it sends.
    virtual void begin_exchange(const void* /*choice*/, const std::int32_t* /*offsets*/, int /*rows*/, int /*E*/,
                                std::int32_t* /*counts*/, cudaStream_t) {
        ENSURE(false, "an exchange of one device");
    }
    // Where the rows of each of this rank's experts begin, (E / ranks + 1).
    virtual void copy_held_offsets(std::int32_t* /*offsets*/, const void* /*choice*/, cudaStream_t) {}
    virtual int held_rows(const void* /*choice*/) const { return 0; }

    // Rows of `width` elements of this rank's tokens to the ranks that hold their experts, and back.
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
