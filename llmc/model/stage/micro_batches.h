// Micro-batches in flight on a rank: each chunk of a micro-batch, from its input to its last gradient, and the memory
// that it holds meanwhile.
//
// At the boundaries of a chunk are residual streams and their gradients, (residual rows, C) each. The chunk beside it
// on this rank makes them, or another rank does: then this rank receives them into its own memory, and sends them from
// it. Another stream that uses a boundary buffer is ordered against the stage's stream by its event (BoundaryTensor).
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "llmc/model/memory/activations.h"
#include "llmc/model/parameters/weight_gradient_queue.h"

// Consecutive layers, with the embedding before the model's first and the head after its last.
struct Chunk {
    LayerRange layers;
    bool embedding = false, head = false;
};

// Returns the most layers that a chunk has.
int most_layers(const std::vector<Chunk>& chunks);

class MicroBatches {
public:
    // A chunk of a micro-batch.
    struct State {
        enum class Phase : std::uint8_t { input, forward, output_gradient, backward } phase = Phase::input;
        BoundaryTensor* input = nullptr;   // from another rank, until forward takes it
        Activations* activations = nullptr;
        BoundaryTensor* dresidual = nullptr;   // gradient of the output, then of the input, until taken or released
        DelayedMemory* delayed = nullptr;
        WeightGradientQueue weights;
    };

    // `chunks`, in the order of the model, and `sizes`, those of the current micro-batches, must outlive this.
    MicroBatches(Arena& arena, const std::vector<Chunk>& chunks, const RankSizes& sizes, Recompute recompute,
                 const InFlight& room, std::int64_t norm_bytes, cudaStream_t stream);
    ~MicroBatches();

    // True if a chunk's input is the output of the chunk before it on this rank.
    bool follows(int chunk) const;
    bool none() const { return states_.empty(); }

    // ---- what crosses to other ranks

    std::int64_t boundary_elements() const { return sizes_.residual_elements(); }
    // Returns the buffer to receive a forward's input into; call it before that forward. Only for a chunk without the
    // embedding whose input is made on another rank.
    BoundaryTensor& input(int chunk, int micro_batch);
    // Output of a finished forward; valid until its backward or release(). A reader on another stream must record
    // `sent`.
    struct Output {
        const floatX* data;
        OwnedEvent& sent;
    };
    Output output(int chunk, int micro_batch);
    // Returns the buffer to receive the output's gradient into, if the next chunk is on another rank; call it before
    // backward_input.
    BoundaryTensor& output_gradient(int chunk, int micro_batch);
    // Input's gradient after backward_input, for another rank; valid until release_input_gradient(). A chunk before it
    // on this rank takes it instead.
    BoundaryTensor& input_gradient(int chunk, int micro_batch);
    void release_input_gradient(int chunk, int micro_batch);
    // Ends a forward without a backward: its output is no longer needed.
    void release(int chunk, int micro_batch) { finish(chunk, micro_batch, true); }

    // ---- for the actions of a stage

    // Begins a forward: takes the input that the chunk before on this rank has made, or that was received, into
    // residual[0]; the embedding has yet to make it. Without `keeps` the activations of the chunk before are taken
    // over.
    State& begin_forward(int chunk, int micro_batch, bool keeps);
    // Begins a backward_input: takes the output's gradient, which the chunk after on this rank has made, or which was
    // received; the head has yet to make it.
    State& begin_backward(int chunk, int micro_batch, WeightGradients when);
    // Ends a backward_input. The activations are given back unless gradients of weights are delayed.
    void end_backward(int chunk, int micro_batch);
    // Runs the delayed gradients of weights, the last work of a micro-batch.
    void run_delayed(int chunk, int micro_batch);

    // Returns activations for work that leaves nothing in them, while nothing is in flight.
    const Activations& any_activations() { return pool_.activations.any(); }

private:
    State& state_of(int chunk, int micro_batch);
    State& begin_state(int chunk, int micro_batch);
    Activations* take_activations();
    void finish(int chunk, int micro_batch, bool activations_are_done);
    const Chunk& chunk(int index) const { return chunks_[static_cast<std::size_t>(index)]; }

    const std::vector<Chunk>& chunks_;
    const RankSizes& sizes_;
    cudaStream_t stream_;
    ActivationPool pool_;
    std::map<std::pair<int, int>, State> states_;   // by chunk and micro-batch
};
