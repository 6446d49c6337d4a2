#include "llmc/model/stage/micro_batches.h"

#include <algorithm>

int most_layers(const std::vector<Chunk>& chunks) {
    std::int64_t most = 0;
    for (const Chunk& chunk : chunks) most = std::max(most, chunk.layers.size());
    return static_cast<int>(most);
}

MicroBatches::MicroBatches(Arena& arena, const std::vector<Chunk>& chunks, const RankSizes& sizes, Recompute recompute,
                           const InFlight& room, std::int64_t norm_bytes, cudaStream_t stream)
    : chunks_(chunks),
      sizes_(sizes),
      stream_(stream),
      pool_(arena, sizes, most_layers(chunks), recompute, room, norm_bytes) {}

MicroBatches::~MicroBatches() = default;

bool MicroBatches::follows(int index) const {
    return index > 0 && chunk(index - 1).layers.end == chunk(index).layers.begin;
}

// ---------------------------------------------------------------------------------------------------------------------
// States

MicroBatches::State& MicroBatches::state_of(int chunk, int micro_batch) {
    const auto found = states_.find({chunk, micro_batch});
    ENSURE(found != states_.end(), "chunk ", chunk, " of micro-batch ", micro_batch,
           " is not in flight: it has no input, or its gradients are complete");
    return found->second;
}

MicroBatches::State& MicroBatches::begin_state(int chunk, int micro_batch) {
    const auto [at, is_new] = states_.try_emplace({chunk, micro_batch});
    ENSURE(is_new, "forward of chunk ", chunk, " of micro-batch ", micro_batch, " twice");
    return at->second;
}

Activations* MicroBatches::take_activations() {
    Activations* const set = pool_.activations.take();
    set->sent.wait(stream_);
    return set;
}

// Ends the state once nobody needs its activations, nor its gradient of the input.
void MicroBatches::finish(int chunk, int micro_batch, bool activations_are_done) {
    State& state = state_of(chunk, micro_batch);
    if (activations_are_done && state.activations)
        pool_.activations.give_back(std::exchange(state.activations, nullptr));
    if (!state.activations && !state.dresidual) states_.erase({chunk, micro_batch});
}

// ---------------------------------------------------------------------------------------------------------------------
// Boundaries

BoundaryTensor& MicroBatches::input(int index, int micro_batch) {
    ENSURE(!chunk(index).embedding && !follows(index), "the input of chunk ", index, " is made here");
    State& state = begin_state(index, micro_batch);
    state.input = pool_.inputs.take();
    return *state.input;
}

MicroBatches::Output MicroBatches::output(int index, int micro_batch) {
    const State& state = state_of(index, micro_batch);
    ENSURE(state.phase != State::Phase::input && state.activations, "chunk ", index, " of micro-batch ", micro_batch,
           " has no output before its forward, nor after its backward");
    return {state.activations->residual[static_cast<std::size_t>(chunk(index).layers.size())], state.activations->sent};
}

BoundaryTensor& MicroBatches::output_gradient(int index, int micro_batch) {
    State& state = state_of(index, micro_batch);
    ENSURE(state.phase == State::Phase::forward && !chunk(index).head, "the output of chunk ", index,
           " of micro-batch ", micro_batch, " is given a gradient twice, or before its forward, or is the loss");
    state.phase = State::Phase::output_gradient;
    state.dresidual = pool_.gradients.take();
    return *state.dresidual;
}

BoundaryTensor& MicroBatches::input_gradient(int index, int micro_batch) {
    const State& state = state_of(index, micro_batch);
    ENSURE(state.phase == State::Phase::backward && state.dresidual, "chunk ", index, " of micro-batch ", micro_batch,
           " has no gradient of its input: it begins with the embedding, or its backward has not been");
    return *state.dresidual;
}

void MicroBatches::release_input_gradient(int index, int micro_batch) {
    input_gradient(index, micro_batch);
    pool_.gradients.give_back(std::exchange(state_of(index, micro_batch).dresidual, nullptr));
    finish(index, micro_batch, false);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and backward

MicroBatches::State& MicroBatches::begin_forward(int index, int micro_batch, bool keeps) {
    if (chunk(index).embedding) {
        begin_state(index, micro_batch).activations = take_activations();
    } else if (follows(index)) {
        const floatX* const from = output(index - 1, micro_batch).data;
        Activations* set = nullptr;
        if (keeps) {
            set = take_activations();
        } else {
            set = std::exchange(state_of(index - 1, micro_batch).activations, nullptr);
            finish(index - 1, micro_batch, true);
        }
        begin_state(index, micro_batch).activations = set;
        CUDA_CHECK(cudaMemcpyAsync(set->residual[0], from,
                                   sizeof(floatX) * static_cast<std::size_t>(boundary_elements()),
                                   cudaMemcpyDeviceToDevice, stream_));
    } else {
        State& state = state_of(index, micro_batch);
        ENSURE(state.input != nullptr, "forward of chunk ", index, " of micro-batch ", micro_batch, " twice");
        state.activations = take_activations();
        state.input->used.wait(stream_);
        std::swap(state.activations->residual[0], state.input->data);   // instead of a copy
        state.input->used.record(stream_);
        pool_.inputs.give_back(std::exchange(state.input, nullptr));
    }
    State& state = state_of(index, micro_batch);
    ENSURE(state.phase == State::Phase::input, "forward of chunk ", index, " of micro-batch ", micro_batch, " twice");
    state.phase = State::Phase::forward;
    return state;
}

MicroBatches::State& MicroBatches::begin_backward(int index, int micro_batch, WeightGradients when) {
    State& state = state_of(index, micro_batch);
    ENSURE(state.phase == State::Phase::forward || state.phase == State::Phase::output_gradient,
           "backward_input of chunk ", index, " of micro-batch ", micro_batch, " twice, or before its forward");
    if (state.phase == State::Phase::output_gradient) {
        state.dresidual->used.wait(stream_);
    } else if (chunk(index).head) {
        state.dresidual = pool_.gradients.take();
        state.dresidual->used.wait(stream_);
    } else {
        ENSURE(index + 1 < static_cast<int>(chunks_.size()) && follows(index + 1), "chunk ", index, " of micro-batch ",
               micro_batch, " was given no gradient of its output");
        state.dresidual = std::exchange(state_of(index + 1, micro_batch).dresidual, nullptr);
        ENSURE(state.dresidual != nullptr, "backward of chunk ", index, " of micro-batch ", micro_batch,
               " before that of the chunk after it");
        finish(index + 1, micro_batch, false);
    }
    state.phase = State::Phase::backward;
    state.weights = WeightGradientQueue(when);
    if (when == WeightGradients::at_schedule) {
        state.delayed = pool_.delayed.take();
        state.activations->sent.wait(stream_);   // gradients take the output's place
    }
    return state;
}

void MicroBatches::end_backward(int index, int micro_batch) {
    State& state = state_of(index, micro_batch);
    if (chunk(index).embedding) {
        state.dresidual->used.record(stream_);
        pool_.gradients.give_back(std::exchange(state.dresidual, nullptr));
    }
    finish(index, micro_batch, state.delayed == nullptr);
}

void MicroBatches::run_delayed(int index, int micro_batch) {
    State& state = state_of(index, micro_batch);
    ENSURE(state.delayed != nullptr, "backward_weight of chunk ", index, " of micro-batch ", micro_batch,
           " before its backward_input, or where gradients of weights are not delayed");
    state.weights.drain();
    pool_.delayed.give_back(std::exchange(state.delayed, nullptr));
    finish(index, micro_batch, true);
}
