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

#include "llmc/model/stage/stage.h"
#include "llmc/parallel/schedule.h"
#include "llmc/parallel/training_groups.h"

// Returns the chunks of a stage. The pieces of the model are balanced by the operations of their matmuls for sequences
// of T tokens (layer_flops_per_token, experts as a token meets them, fewer keys where a layer slides); an embedding
// counts as a tenth of a layer, recompute is not counted. Needs at least as many layers as there are pieces.
std::vector<Chunk> chunks_of_stage(const ModelConfig& config, const PipelineShape& shape, int stage, int T);

// Returns the most that a stage with these chunks has in flight at once while it carries out a list of training. Counts
// one more receive buffer than is in use, so that transfers do not wait for work, as `simulate` assumes. `documents`:
// they are masked, so forward and backward of every chunk read the batch.
InFlight in_flight(const PipelineSchedule& schedule, const std::vector<Chunk>& chunks, bool documents = false);

class Pipeline {
public:
    Pipeline(Stage& stage, Arena& arena, const PipelineLinks& links = {});

    // Fills in this rank's tokens and targets of a micro-batch, (B, T) of stage.sizes() each, and where their documents
    // begin. Called once for each micro-batch that an action of this rank reads, before the first such action. Ids must
    // be checked already. `starts` are 0 before, one document in each sequence.
    using Read = std::function<void(int micro_batch, const MicroBatch& to)>;

    // Runs forward and backward of all micro-batches of a schedule. Calls `losses_made` when the work is queued that
    // puts the losses of a micro-batch into stage.losses().
    void train(const PipelineSchedule& schedule, const Read& read, float dloss,
               const std::function<void()>& losses_made) {
        if (ahead_ != nullptr) batches_[0] = std::exchange(ahead_, nullptr);
        run(schedule, read, Purpose::training, dloss, losses_made);
    }
    // Reads micro-batch `number` now and queues its upload; it is the first of the next call of train().
    void read_ahead(const Read& read, int number);
    void forget_read_ahead();

    // Runs a schedule without backward (forward_schedules).
    void forward(
        const PipelineSchedule& schedule, const Read& read, Purpose purpose,
        const std::function<void()>& losses_made = [] {}) {
        run(schedule, read, purpose, 0, losses_made);
    }
    // Runs the forward of one micro-batch.
    void forward(const Read& read, Purpose purpose) { forward(forward_of_one_, read, purpose); }

private:
    // One end of a link, and the stream of its transfers.
    struct Link {
        Communicator* group;
        std::optional<OwnedStream> stream;
        explicit Link(Communicator* its_group) : group(its_group) {
            if (group) stream.emplace(StreamPriority::greatest);   // other ranks wait for it
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
    std::map<int, BatchBuffer*> batches_;   // by micro-batch, until its last reader
    BatchBuffer* ahead_ = nullptr;          // filled by read_ahead()
    Stage::UnitReads unit_reads_;           // reads of the current pass
};
