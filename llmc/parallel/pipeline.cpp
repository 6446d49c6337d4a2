#include "llmc/parallel/pipeline.h"

Pipeline::Pipeline(Stage& stage, Arena& arena)
    : stage_(stage), tokens_(static_cast<std::size_t>(stage.tokens())), targets_(tokens_.size()) {
    bool reads = false;   // only the first and the last stage of a pipeline
    for (int chunk = 0; chunk < stage.chunks(); chunk++) reads = reads || stage.backward_reads_batch(chunk);
    for (int i = 0; reads && i < stage.options().in_flight.activations; i++) {
        const RankSizes& sizes = stage.sizes();
        buffers_.add(BatchBuffer(arena, sizes.B, sizes.T, sizes.V, sizes.first_token));
    }
}

const Batch& Pipeline::read_batch(const Read& read, int micro_batch, Purpose purpose) {
    BatchBuffer*& buffer = batches_[micro_batch];
    if (buffer == nullptr) {
        buffer = buffers_.take();
        const auto count = static_cast<std::size_t>(stage_.tokens());
        const auto tokens = std::span(tokens_).first(count), targets = std::span(targets_).first(count);
        read(micro_batch, tokens, targets);
        buffer->upload(tokens, purpose == Purpose::logits ? std::span<std::int32_t>() : targets, stage_.stream());
    }
    return buffer->batch();
}

bool Pipeline::reads_batch(const Action& action, Purpose purpose) const {
    switch (action.kind) {
        case Action::Kind::forward: return stage_.forward_reads_batch(action.chunk, purpose);
        case Action::Kind::backward_input: return stage_.backward_reads_batch(action.chunk);
        case Action::Kind::backward_weight: break;
    }
    return false;
}

void Pipeline::carry_out(const Action& action, const Batch& batch, Purpose purpose, float dloss,
                         const std::function<void()>& losses_made) {
    const auto& [kind, chunk, micro_batch] = action;
    const bool head = stage_.chunk(chunk).head;
    switch (kind) {
        case Action::Kind::forward:
            stage_.forward(chunk, micro_batch, batch, purpose);
            if (head && purpose == Purpose::loss) losses_made();
            if (purpose != Purpose::training && (chunk + 1 == stage_.chunks() || !stage_.follows(chunk + 1))) {
                stage_.release(chunk, micro_batch);
            }
            break;
        case Action::Kind::backward_input:
            stage_.backward_input(chunk, micro_batch, batch, dloss);
            if (head) losses_made();
            break;
        case Action::Kind::backward_weight: stage_.backward_weight(chunk, micro_batch); break;
    }
}

void Pipeline::run(const PipelineSchedule& schedule, const Read& read, Purpose purpose, float dloss,
                   const std::function<void()>& losses_made) {
    uses_.clear();
    std::map<int, std::size_t> last_reader;   // of each micro-batch: after it the batch is no longer needed
    for (std::size_t i = 0; i < schedule.size(); i++) {
        const Action& action = schedule[i];
        if (action.kind == Action::Kind::forward) stage_.add_forward_uses(uses_, action.chunk, purpose);
        if (action.kind == Action::Kind::backward_input) stage_.add_backward_uses(uses_, action.chunk);
        if (reads_batch(action, purpose)) last_reader[action.micro_batch] = i;
    }
    stage_.begin_pass(uses_);
    for (std::size_t i = 0; i < schedule.size(); i++) {
        const Action& action = schedule[i];
        const bool reads = reads_batch(action, purpose);
        carry_out(action, reads ? read_batch(read, action.micro_batch, purpose) : Batch{}, purpose, dloss, losses_made);
        if (!reads || last_reader.at(action.micro_batch) != i) continue;
        buffers_.give_back(batches_.at(action.micro_batch));
        batches_.erase(action.micro_batch);
    }
    ENSURE(stage_.nothing_in_flight(), "a schedule that leaves micro-batches in flight");
}
