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
    State& own = state_of(chunk, micro_batch);
    if (activations_are_done && own.activations) pool_.activations.give_back(std::exchange(own.activations, nullptr));
    if (!own.activations && !own.dresidual) states_.erase({chunk, micro_batch});
}

// ---------------------------------------------------------------------------------------------------------------------
// Boundaries

BoundaryTensor& MicroBatches::input(int index, int micro_batch) {
    ENSURE(!chunk(index).embedding && !follows(index), "the input of chunk ", index, " is made here");
    State& own = begin_state(index, micro_batch);
    own.input = pool_.inputs.take();
    return *own.input;
}

MicroBatches::Output MicroBatches::output(int index, int micro_batch) {
    const State& own = state_of(index, micro_batch);
    ENSURE(own.phase != State::Phase::input && own.activations, "chunk ", index, " of micro-batch ", micro_batch,
           " has no output before its forward, nor after its backward");
    return {own.activations->residual[static_cast<std::size_t>(chunk(index).layers.size())], own.activations->sent};
}

BoundaryTensor& MicroBatches::output_gradient(int index, int micro_batch) {
    State& own = state_of(index, micro_batch);
    ENSURE(own.phase == State::Phase::forward && !chunk(index).head, "the output of chunk ", index, " of micro-batch ",
           micro_batch, " is given a gradient twice, or before its forward, or is the loss");
    own.phase = State::Phase::output_gradient;
    own.dresidual = pool_.gradients.take();
    return *own.dresidual;
}

BoundaryTensor& MicroBatches::input_gradient(int index, int micro_batch) {
    const State& own = state_of(index, micro_batch);
    ENSURE(own.phase == State::Phase::backward && own.dresidual, "chunk ", index, " of micro-batch ", micro_batch,
           " has no gradient of its input: it begins with the embedding, or its backward has not been");
    return *own.dresidual;
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
        State& own = state_of(index, micro_batch);
        ENSURE(own.input != nullptr, "forward of chunk ", index, " of micro-batch ", micro_batch, " twice");
        own.activations = take_activations();
        own.input->used.wait(stream_);
        std::swap(own.activations->residual[0], own.input->data);   // instead of a copy
        own.input->used.record(stream_);
        pool_.inputs.give_back(std::exchange(own.input, nullptr));
    }
    State& own = state_of(index, micro_batch);
    ENSURE(own.phase == State::Phase::input, "forward of chunk ", index, " of micro-batch ", micro_batch, " twice");
    own.phase = State::Phase::forward;
    return own;
}

MicroBatches::State& MicroBatches::begin_backward(int index, int micro_batch, WeightGradients when) {
    State& own = state_of(index, micro_batch);
    ENSURE(own.phase == State::Phase::forward || own.phase == State::Phase::output_gradient, "backward_input of chunk ",
           index, " of micro-batch ", micro_batch, " twice, or before its forward");
    if (own.phase == State::Phase::output_gradient) {
        own.dresidual->used.wait(stream_);
    } else if (chunk(index).head) {
        own.dresidual = pool_.gradients.take();
        own.dresidual->used.wait(stream_);
    } else {
        ENSURE(index + 1 < static_cast<int>(chunks_.size()) && follows(index + 1), "chunk ", index, " of micro-batch ",
               micro_batch, " was given no gradient of its output");
        own.dresidual = std::exchange(state_of(index + 1, micro_batch).dresidual, nullptr);
        ENSURE(own.dresidual != nullptr, "backward of chunk ", index, " of micro-batch ", micro_batch,
               " before that of the chunk after it");
        finish(index + 1, micro_batch, false);
    }
    own.phase = State::Phase::backward;
    own.weights = WeightGradientQueue(when);
    if (when == WeightGradients::at_schedule) {
        own.delayed = pool_.delayed.take();
        own.activations->sent.wait(stream_);   // gradients take the output's place
    }
    return own;
}

void MicroBatches::end_backward(int index, int micro_batch) {
    State& own = state_of(index, micro_batch);
    if (chunk(index).embedding) {
        own.dresidual->used.record(stream_);
        pool_.gradients.give_back(std::exchange(own.dresidual, nullptr));
    }
    finish(index, micro_batch, own.delayed == nullptr);
}

void MicroBatches::run_delayed(int index, int micro_batch) {
    State& own = state_of(index, micro_batch);
    ENSURE(own.delayed != nullptr, "backward_weight of chunk ", index, " of micro-batch ", micro_batch,
           " before its backward_input, or where gradients of weights are not delayed");
    own.weights.drain();
    pool_.delayed.give_back(std::exchange(own.delayed, nullptr));
    finish(index, micro_batch, true);
}
