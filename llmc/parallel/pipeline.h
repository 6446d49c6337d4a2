// Carries out a schedule on a stage: training, validation, sampling and evaluation all pass through here.
//
// Every legal order of actions gives the same losses, and the same gradients to the bit wherever parts of a gradient
// are added in the same order: in that of micro-batches, for each tensor.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "llmc/model/stage.h"
#include "llmc/parallel/schedule.h"
#include "llmc/parallel/training_groups.h"

// The layers of a stage, and what stands around them: the pieces of the model are balanced by the work of a micro-batch
// with sequences of T tokens. Needs at least as many layers as there are pieces.
std::vector<Chunk> chunks_of_stage(const ModelConfig& config, const PipelineShape& shape, int stage, int T);

// What a stage with these chunks has in flight at once while it carries out a list, which is one of training. Of what
// it receives there is one more, so that transfers wait for no work that they do not need, as `simulate` has it.
// `documents`: every action of layers reads where they begin.
InFlight in_flight(const PipelineSchedule& schedule, const std::vector<Chunk>& chunks, bool documents = false);

class Pipeline {
public:
    Pipeline(Stage& stage, Arena& arena, const PipelineLinks& links = {});

    // Fills in this rank's tokens of a micro-batch, (B, T) of stage.sizes() each, and where their documents begin.
    // Called once for each that an action of this rank reads, before the first of them. Ids must be checked already.
    // `starts` are 0, one document in each sequence, for who does not fill them in.
    using Read = std::function<void(int micro_batch, const MicroBatch& to)>;

    // Forward and backward of all micro-batches of a schedule. `losses_made`: whenever those of a micro-batch are in
    // stage.losses(), once what is queued has run.
    void train(const PipelineSchedule& schedule, const Read& read, float dloss,
               const std::function<void()>& losses_made) {
        if (ahead_ != nullptr) batches_[0] = std::exchange(ahead_, nullptr);
        run(schedule, read, Purpose::training, dloss, losses_made);
    }
    // Reads micro-batch `number` now, and queues its way to the device, as the first of the next call of train.
    void read_ahead(const Read& read, int number);
    void forget_read_ahead();

    // A schedule without backward (forward_schedules).
    void forward(
        const PipelineSchedule& schedule, const Read& read, Purpose purpose,
        const std::function<void()>& losses_made = [] {}) {
        run(schedule, read, purpose, 0, losses_made);
    }
    // One micro-batch.
    void forward(const Read& read, Purpose purpose) { forward(forward_of_one_, read, purpose); }

private:
    // One end of a link, and the stream of its transfers.
    struct Link {
        Communicator* group;
        std::optional<OwnedStream> stream;
        explicit Link(Communicator* its_group) : group(its_group) {
            if (group) stream.emplace(StreamPriority::greatest);   // what others wait for goes first
        }
    };
    void receive(const Link& link, const BoundaryTensor& boundary, const Action& action) const;
    void send(const Link& link, const floatX* data, const OwnedEvent& sent, const Action& action) const;
    void transfer(const Action& action, Purpose purpose);
    bool hands_on(int chunk) const;
    void run(const PipelineSchedule& schedule, const Read& read, Purpose purpose, float dloss,
             const std::function<void()>& losses_made);
    bool reads_batch(const Action& action, Purpose purpose) const;
    BatchBuffer* filled_buffer(const Read& read, int micro_batch, Purpose purpose);
    const Batch& read_batch(const Read& read, int micro_batch, Purpose purpose);
    void carry_out(const Action& action, const Batch& batch, Purpose purpose, float dloss,
                   const std::function<void()>& losses_made);

    Stage& stage_;
    Link input_, output_, output_gradient_, input_gradient_;
    OwnedEvent computed_;
    PipelineSchedule forward_of_one_;
    std::vector<std::int32_t> tokens_, targets_, starts_;   // on the host
    Pool<BatchBuffer> buffers_{"micro-batches"};
    std::map<int, BatchBuffer*> batches_;   // of micro-batches that are read again
    BatchBuffer* ahead_ = nullptr;          // what read_ahead has filled
    Stage::Uses uses_;                      // of the pass at hand
};
