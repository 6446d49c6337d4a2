// Ring attention: keys and values travel from rank to rank while each rank's queries stay at home.
// Liu et al., "Ring attention with blockwise transformers for near-infinite context", 2023.
//
// Each of N ring ranks has two slices of the sequence (zigzag: llmc/mesh/context_cut.h). At step s it has the keys and
// values of rank (own - s) mod N, and passes them on while it computes. Only rectangles occur:
//
//   step 0            own slices                        causal, all queries x all keys
//   of earlier ranks  their first slice is seen         full, all queries x the first half of the keys
//   of later ranks    both are seen by the own second   full, the second half of the queries x all keys
//
// so all ranks have equal work at every step, without windows and masks of documents: with them a block that no query
// sees is skipped, though its keys travel on. Outputs merge by log-sum-exp in fp32. In backward, gradients of keys and
// values travel behind them in fp32: the next rank begins them, every further rank adds its part, and the last one
// sends them home, where the own part has stayed.
//
// Traffic is on a stream of its own, in one group of calls per step, ordered against the compute stream by events
// alone. For s elements of one of k and v a rank sends per call: 2(N-1)s in forward; as much again in backward, and
// 2(N-1)s in fp32. Gradients travel in the MLP's reusable memory, if that has room and no delayed gradient of weights
// reads it.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stream.h"
#include "llmc/mesh/context_cut.h"
#include "llmc/model/attention/attention_choice.h"
#include "llmc/model/memory/activations.h"
#include "llmc/model/parameters/weight_gradient_queue.h"
#include "llmc/model/precision.h"
#include "llmc/process/comm.h"

// A step of the ring: `hop` sends keys and values on, on the stream `traffic`, while `block` computes attention.
struct RingStep {
    std::function<void()> hop, block;
    cudaStream_t traffic;
};
struct RingTimes {
    double hop_s, block_s;
};

// Returns a warning if a hop takes longer than the attention that is to hide it, with the length of sequences that
// would hide it: the time of hops grows with that length, that of attention with its square. Else empty. `T`: tokens of
// a sequence, a multiple of `unit`.
std::string ring_warning(const RingTimes& times, std::int64_t T, int unit);

class Ring {
public:
    // `group`: the ranks of the ring, in its order.
    Ring(Communicator& group, Arena& arena, cudaStream_t compute);

    // Takes memory for calls of at most this shape. Nothing may be in flight. `reusable`: bytes of the memory that
    // backward will be given; gradients of keys and values travel in its first two pieces if they have room.
    void reserve(const AttentionShape& own, const std::vector<std::size_t>& reusable = {});

    // Runs attention over the ring. The shape is that of the own block: causal, Tq = Tk = this rank's tokens, first
    // slice and second.
    void forward(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& own);
    // Runs backward. `queue`: gradients of weights that wait to hide the last hop.
    void backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& own,
                  const ReusableMemory& reusable, WeightGradientQueue& queue);
    // Returns one step of forward, to be measured. The shape is as in forward().
    RingStep step(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& own);

private:
    static AttentionShape block_shape(const AttentionShape& own, int step, const RingBlock& block);
    template <class T>
    void hop(T* to, const T* from, std::size_t count);
    void send_keys_on(int step, const AttentionShape& own);

    Communicator& group_;
    Arena& arena_;
    cudaStream_t compute_;
    bool reuses_ = false;
    OwnedStream traffic_{StreamPriority::greatest};
    // (B, T, 2, kv heads, HS): keys and values, or their gradients, in turns of steps
    std::array<DeviceBuffer<floatX>, 2> keys_;
    std::array<DeviceBuffer<float>, 2> key_gradients_;   // only without reusable memory
    DeviceBuffer<float> own_part_;                       // this rank's part of key and value gradients
    DeviceBuffer<float> block_, block_lse_;              // (B, T, NH, HS), (B, NH, T): output, or gradient of queries
    DeviceBuffer<float> half_lse_;                       // (B, NH, T/2) of the second slice
    DeviceBuffer<float> sum_, pair_sum_;                 // fp32 sums of bf16 results until complete
    OwnedEvent computed_, travelled_;
};
