#include "llmc/parallel/pipeline.h"

Pipeline::Pipeline(Stage& stage, Arena& arena)
    : stage_(stage),
      tokens_(static_cast<std::size_t>(stage.options().B) * static_cast<std::size_t>(stage.options().T)),
      targets_(tokens_.size()) {
    for (int i = 0; i < stage.options().in_flight.activations; i++) {
        buffers_.add(BatchBuffer(arena, stage.options().B, stage.options().T, stage.config().vocab_size));
    }
}

const Batch& Pipeline::read_batch(const Read& read, int micro_batch, Purpose purpose) {
    BatchBuffer*& buffer = batches_[micro_batch];
    if (buffer == nullptr) {
        buffer = buffers_.take();
        const auto count = static_cast<std::size_t>(stage_.options().B) * static_cast<std::size_t>(stage_.options().T);
        const auto tokens = std::span(tokens_).first(count), targets = std::span(targets_).first(count);
        read(micro_batch, tokens, targets);
        buffer->upload(tokens, purpose == Purpose::logits ? std::span<std::int32_t>() : targets, stage_.stream());
    }
    return buffer->batch();
}

void Pipeline::end_batch(int micro_batch) {
    buffers_.give_back(batches_.at(micro_batch));
    batches_.erase(micro_batch);
}

void Pipeline::train(const PipelineSchedule& schedule, const Read& read, float dloss,
                     const std::function<void()>& losses_made) {
    uses_.clear();
    for (const Action& action : schedule) {
        if (action.kind == Action::Kind::forward) stage_.add_forward_uses(uses_, action.chunk, Purpose::training);
        if (action.kind == Action::Kind::backward_input) stage_.add_backward_uses(uses_, action.chunk);
    }
    stage_.begin_pass(uses_);
    for (const auto& [kind, chunk, micro_batch] : schedule) {
        switch (kind) {
            case Action::Kind::forward:
                stage_.forward(chunk, micro_batch, read_batch(read, micro_batch, Purpose::training), Purpose::training);
                break;
            case Action::Kind::backward_input:
                stage_.backward_input(chunk, micro_batch, read_batch(read, micro_batch, Purpose::training), dloss);
                if (stage_.chunk(chunk).head) losses_made();
                if (chunk == 0) end_batch(micro_batch);
                break;
            case Action::Kind::backward_weight: stage_.backward_weight(chunk, micro_batch); break;
        }
    }
    ENSURE(stage_.nothing_in_flight() && batches_.empty(), "a schedule that leaves micro-batches in flight");
}

void Pipeline::forward(const Read& read, Purpose purpose) {
    constexpr int micro_batch = 0;
    uses_.clear();
    for (int chunk = 0; chunk < stage_.chunks(); chunk++) stage_.add_forward_uses(uses_, chunk, purpose);
    stage_.begin_pass(uses_);
    const Batch& batch = read_batch(read, micro_batch, purpose);
    for (int chunk = 0; chunk < stage_.chunks(); chunk++) {
        stage_.forward(chunk, micro_batch, batch, purpose);
        if (chunk > 0) stage_.release(chunk - 1, micro_batch);
    }
    stage_.release(stage_.chunks() - 1, micro_batch);
    end_batch(micro_batch);
}
