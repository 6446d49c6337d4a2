#include "llmc/parallel/pipeline.h"

#include <algorithm>
#include <set>

#include "llmc/base/profile_range.h"

// Balances by the operations of a token's matmuls, in those of a mean layer; a layer with a window has fewer than one
// without. The embedding moves data only, as two or three norms do.
std::vector<Chunk> chunks_of_stage(const ModelConfig& config, const PipelineShape& shape, int stage, int T) {
    const double mean = layer_flops_per_token(config, T), embedding = 0.1,
                 classifier = 6 * static_cast<double>(config.padded_vocab_size * config.channels) / mean,
                 of_key = 12 * static_cast<double>(config.heads * config.head_size()) / mean,
                 mean_key_count = mean_keys(config, T);
    std::vector<double> costs;
    for (std::int64_t layer = 0; layer < config.layers; layer++) {
        costs.push_back(1 + of_key * (keys_by_layer(config, layer, T) - mean_key_count));
    }
    const int pieces = shape.stages * shape.chunks;
    const std::vector<LayerRange> layers = balance_layers(costs, pieces, embedding, classifier);
    std::vector<Chunk> chunks;
    for (int piece = stage; piece < pieces; piece += shape.stages) {
        chunks.push_back({layers[static_cast<std::size_t>(piece)], piece == 0, piece == pieces - 1});
    }
    return chunks;
}

InFlight in_flight(const PipelineSchedule& schedule, const std::vector<Chunk>& chunks, bool documents) {
    InFlight now{0, 0, 0, 0, 0}, most{1, 1, 0, 0, 1};
    const bool delays = std::any_of(schedule.begin(), schedule.end(),
                                    [](const Action& action) { return action.kind == Action::Kind::backward_weight; });
    auto reads = [&](const Action& action) {   // true if it reads the tokens of its micro-batch
        const Chunk& what = chunks[static_cast<std::size_t>(action.chunk)];
        return (action.kind == Action::Kind::forward && (what.embedding || documents)) ||
               (action.kind == Action::Kind::backward_input && (what.embedding || what.head || documents));
    };
    std::map<int, int> readers;   // readers still to come, per micro-batch
    for (const Action& action : schedule) readers[action.micro_batch] += reads(action);
    std::set<int> read;
    bool receives_inputs = false, receives_gradients = false;
    for (const Action& action : schedule) {
        const auto& [kind, chunk, micro_batch] = action;
        const Chunk& what = chunks[static_cast<std::size_t>(chunk)];
        const bool follows = chunk > 0 && chunks[static_cast<std::size_t>(chunk - 1)].layers.end == what.layers.begin;
        if (kind == Action::Kind::receive_input) now.inputs++, receives_inputs = true;
        if (kind == Action::Kind::receive_output_gradient) now.gradients++, receives_gradients = true;
        if (kind == Action::Kind::forward) now.activations++;
        if (kind == Action::Kind::backward_input && what.head) now.gradients++;
        if (kind == Action::Kind::backward_input && delays) now.delayed++;
        if (reads(action)) read.insert(micro_batch);
        now.batches = static_cast<int>(read.size());
        most = most_of(most, now);
        if (reads(action) && --readers[micro_batch] == 0) read.erase(micro_batch);
        if (kind == Action::Kind::forward && !what.embedding && !follows) now.inputs--;
        if (kind == Action::Kind::backward_input && what.embedding) now.gradients--;
        if (kind == Action::Kind::send_input_gradient) now.gradients--;
        if (kind == Action::Kind::backward_weight) now.delayed--;
        if (kind == (delays ? Action::Kind::backward_weight : Action::Kind::backward_input)) now.activations--;
    }
    // One more receive buffer, so that the next boundary arrives while the last is read or sent on.
    if (micro_batches_of(schedule) > 1) {
        most.inputs += receives_inputs;
        most.gradients += receives_gradients;
    }
    return most;
}

Pipeline::Pipeline(Stage& stage, Arena& arena, const PipelineLinks& links)
    : stage_(stage),
      input_(links.input),
      output_(links.output),
      output_gradient_(links.output_gradient),
      input_gradient_(links.input_gradient),
      tokens_(static_cast<std::size_t>(stage.tokens())),
      targets_(tokens_.size()),
      starts_(stage.attended_tokens()) {
    const RankLayout& place = stage.storage().place();
    const bool linked = links.input != nullptr || links.output != nullptr;   // else a stage by itself
    forward_of_one_ = forward_schedules(linked ? place.mesh.pp : 1, stage.chunks(),
                                        1)[linked ? static_cast<std::size_t>(place.at.pp) : 0];
    bool reads = false;   // only the first and the last stage of a pipeline, unless documents are masked
    for (int chunk = 0; chunk < stage.chunks(); chunk++) reads = reads || stage.backward_reads_batch(chunk);
    const InFlight& most = stage.options().in_flight;
    const int in_flight = most.batches > 0 ? most.batches : most.activations;
    const int read_ahead = stage.options().backward ? 1 : 0;
    const RankSizes& sizes = stage.sizes();
    const bool learns_positions =
        sizes.model.positions == PositionKind::learned && stage.options().backward && stage.chunk(0).embedding;
    const DocumentRoom documents{starts_.size(), static_cast<std::size_t>(stage.context().ring_size()),
                                 learns_positions ? static_cast<int>(sizes.model.max_seq_len) : 0, sizes.model.window};
    for (int i = 0; reads && i < in_flight + read_ahead; i++) {
        buffers_.add(BatchBuffer(arena, sizes.B, sizes.T, sizes.V, sizes.first_token, documents));
    }
}

BatchBuffer* Pipeline::filled_buffer(const Read& read, int micro_batch, Purpose purpose) {
    const auto count = static_cast<std::size_t>(stage_.tokens());
    const auto tokens = std::span(tokens_).first(count), targets = std::span(targets_).first(count),
               starts = std::span(starts_).first(stage_.attended_tokens());
    std::ranges::fill(starts, 0);
    read(micro_batch, {tokens, targets, starts});
    BatchBuffer* const buffer = buffers_.take();
    buffer->upload(tokens, purpose == Purpose::logits ? std::span<std::int32_t>() : targets, starts, stage_.context(),
                   stage_.options().T, stage_.stream());
    return buffer;
}

const Batch& Pipeline::read_batch(const Read& read, int micro_batch, Purpose purpose) {
    BatchBuffer*& buffer = batches_[micro_batch];
    if (buffer == nullptr) buffer = filled_buffer(read, micro_batch, purpose);
    return buffer->batch();
}

void Pipeline::read_ahead(const Read& read, int number) {
    forget_read_ahead();
    bool reads = false;
    for (int chunk = 0; chunk < stage_.chunks(); chunk++) reads = reads || stage_.backward_reads_batch(chunk);
    if (reads) ahead_ = filled_buffer(read, number, Purpose::training);
}

void Pipeline::forget_read_ahead() {
    if (ahead_ != nullptr) buffers_.give_back(std::exchange(ahead_, nullptr));
}

bool Pipeline::reads_batch(const Action& action, Purpose purpose) const {
    switch (action.kind) {
        case Action::Kind::forward: return stage_.forward_reads_batch(action.chunk, purpose);
        case Action::Kind::backward_input: return stage_.backward_reads_batch(action.chunk);
        default: return false;
    }
}

// True if another chunk takes this chunk's output, on this rank or through a link.
bool Pipeline::hands_on(int chunk) const {
    if (chunk + 1 < stage_.chunks() && stage_.micro_batches().follows(chunk + 1)) return true;
    return !stage_.chunk(chunk).head && output_.group != nullptr;
}

void Pipeline::carry_out(const Action& action, const Batch& batch, Purpose purpose, float dloss,
                         const std::function<void()>& losses_made) {
    const auto& [kind, chunk, micro_batch] = action;
    const bool head = stage_.chunk(chunk).head;
    const ProfileRange range(name_of(kind));
    switch (kind) {
        case Action::Kind::forward:
            stage_.forward(chunk, micro_batch, batch, purpose);
            if (head && purpose == Purpose::loss) losses_made();
            if (purpose != Purpose::training && !hands_on(chunk)) stage_.micro_batches().release(chunk, micro_batch);
            break;
        case Action::Kind::backward_input:
            stage_.backward_input(chunk, micro_batch, batch, dloss);
            if (head) losses_made();
            break;
        case Action::Kind::backward_weight: stage_.backward_weight(chunk, micro_batch); break;
        default: transfer(action, purpose);
    }
}

void Pipeline::receive(const Link& link, const BoundaryTensor& boundary, const Action& action) const {
    ENSURE(link.group != nullptr, "a transfer where there is no link");
    const cudaStream_t stream = link.stream->get();
    boundary.used.wait(stream);
    link.group->about(action.micro_batch, action.chunk);
    link.group->receive(boundary.data, static_cast<std::size_t>(stage_.micro_batches().boundary_elements()), 0, stream);
    boundary.used.record(stream);
}

void Pipeline::send(const Link& link, const floatX* data, const OwnedEvent& sent, const Action& action) const {
    ENSURE(link.group != nullptr, "a transfer where there is no link");
    const cudaStream_t stream = link.stream->get();
    computed_.record(stage_.stream());
    computed_.wait(stream);
    link.group->about(action.micro_batch, action.chunk);
    link.group->send(data, static_cast<std::size_t>(stage_.micro_batches().boundary_elements()), 1, stream);
    sent.record(stream);
}

void Pipeline::transfer(const Action& action, Purpose purpose) {
    const auto& [kind, chunk, micro_batch] = action;
    if (kind == Action::Kind::receive_input) receive(input_, stage_.micro_batches().input(chunk, micro_batch), action);
    if (kind == Action::Kind::receive_output_gradient) {
        receive(output_gradient_, stage_.micro_batches().output_gradient(chunk, micro_batch), action);
    }
    if (kind == Action::Kind::send_output) {
        const MicroBatches::Output output = stage_.micro_batches().output(chunk, micro_batch);
        send(output_, output.data, output.sent, action);
        if (purpose != Purpose::training) stage_.micro_batches().release(chunk, micro_batch);
    }
    if (kind == Action::Kind::send_input_gradient) {
        const BoundaryTensor& gradient = stage_.micro_batches().input_gradient(chunk, micro_batch);
        send(input_gradient_, gradient.data, gradient.used, action);
        stage_.micro_batches().release_input_gradient(chunk, micro_batch);
    }
}

void Pipeline::run(const PipelineSchedule& schedule, const Read& read, Purpose purpose, float dloss,
                   const std::function<void()>& losses_made) {
    unit_reads_.clear();
    std::map<int, std::size_t> last_reader;   // index per micro-batch: after it the batch is no longer needed
    for (std::size_t i = 0; i < schedule.size(); i++) {
        const Action& action = schedule[i];
        if (action.kind == Action::Kind::forward) stage_.add_forward_reads(unit_reads_, action.chunk, purpose);
        if (action.kind == Action::Kind::backward_input) stage_.add_backward_reads(unit_reads_, action.chunk);
        if (reads_batch(action, purpose)) last_reader[action.micro_batch] = i;
    }
    stage_.begin_pass(unit_reads_);
    for (std::size_t i = 0; i < schedule.size(); i++) {
        const Action& action = schedule[i];
        const bool reads = reads_batch(action, purpose);
        carry_out(action, reads ? read_batch(read, action.micro_batch, purpose) : Batch{}, purpose, dloss, losses_made);
        if (!reads || last_reader.at(action.micro_batch) != i) continue;
        buffers_.give_back(batches_.at(action.micro_batch));
        batches_.erase(action.micro_batch);
    }
    ENSURE(stage_.micro_batches().none(), "a schedule that leaves micro-batches in flight");
}
