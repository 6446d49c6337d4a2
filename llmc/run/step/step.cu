#include "llmc/run/step/step.h"

#include <cstddef>

#include "llmc/base/log.h"
#include "llmc/base/profile_range.h"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/rows/classifier.cuh"
#include "llmc/parallel/zero.h"
#include "llmc/parallel/zero_formulas.h"

// Results of a step on the device, read by the host in one copy. The first step_sums doubles are summed over ranks in
// one all-reduce.
struct Step::Numbers {
    double loss;
    StopVotes stop;
    double sum_of_squares;       // sum over the gradients that this rank owns; after the all-reduce, over all
    double squares_of_replica;   // sum over the ranks of this replica, with local steps of several
    GradNorm norm;
};

Step::Step(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups)
    : stage_(stage),
      grad_clip_(options.grad_clip),
      groups_(groups),
      optimizer_(stage.options().backward ? std::make_unique<Optimizer>(stage, options, arena, groups) : nullptr),
      numbers_(arena.allocate<Numbers>("step/numbers", 1)),
      fullest_ranks_(
          stage.expert_totals().held_rows.empty()
              ? DeviceBuffer<std::int32_t>{}
              : arena.allocate<std::int32_t>("experts/fullest ranks", stage.expert_totals().held_rows.size())),
      vote_(arena.counts() ? 0 : 1),
      sync_(stage, optimizer_.get(), options, groups, arena),
      pipeline_(stage, arena, groups.links) {
    static_assert(offsetof(Numbers, sum_of_squares) == (step_sums - 1) * sizeof(double));
    const RankLayout& place = stage.storage().place();
    ENSURE(groups.all != nullptr || place.mesh.size() == 1, "a mesh of ", place.mesh.size(),
           " ranks without a communicator of all");
    ENSURE(place.mesh.pp == 1 || groups.links.input != nullptr || groups.links.output != nullptr, "pipeline stage ",
           place.at.pp, " of ", place.mesh.pp, " without a link to another");
    ENSURE(groups.tensor != nullptr || !stage.options().sequence_parallel, "parts of the sums of ", place.mesh.tp,
           " tp ranks without a group to add them");
    ENSURE(sync_.zero() != nullptr || place.zero_stage == 0, "ZeRO stage ", place.zero_stage,
           " without a group to share with");
}

Step::~Step() = default;

void Step::ends_after(int steps) {
    optimizer_->ends_after(steps);
    sync_.ends_after(steps);
}

void Step::gradients(const PipelineSchedule& schedule, const Pipeline::Read& read, float token_share,
                     const std::function<StopVotes()>& vote) {
    const ProfileRange range("gradients");
    const cudaStream_t stream = stage_.stream();
    Numbers* const numbers = numbers_.data();
    stage_.gradients().begin_step();
    const int micro_batches = micro_batches_of(schedule);
    sync_.begin_passes(micro_batches);
    const int sequences = stage_.options().B * micro_batches * stage_.options().place.mesh.dp;
    stage_.set_sequence_share(sequences > 0 ? 1.0f / static_cast<float>(sequences) : 0.0f);
    stage_.begin_expert_totals();
    // a rank without losses adds 0 to the sum over ranks
    CUDA_CHECK(cudaMemsetAsync(&numbers->loss, 0, sizeof numbers->loss, stream));
    // so that the mean of the replicas' gradients is that over all tokens
    const float replicas = static_cast<float>(stage_.options().replicas);
    pipeline_.train(schedule, read, token_share * replicas, [&] {
        if (!stage_.adds_losses()) return;
        sum_losses(&numbers->loss, stage_.losses(), stage_.tokens(), token_share, true, stream);
    });
    StopVotes& own_vote = vote_.values()[0];
    wait_for(vote_sent_.get());   // the previous step's vote has left this memory
    own_vote = vote();
    CUDA_CHECK(cudaMemcpyAsync(&numbers->stop, &own_vote, sizeof own_vote, cudaMemcpyHostToDevice, stream));
    vote_sent_.record(stream);
    const ProfileRange reductions("reductions and norm");
    sync_.end_passes();
    optimizer_->sum_squares(&numbers->sum_of_squares);
    sum_numbers();
    add_expert_totals();
    const bool differ = groups_.outer != nullptr;
    finish_global_norm(&numbers->norm, differ ? &numbers->squares_of_replica : &numbers->sum_of_squares, &numbers->loss,
                       grad_clip_, stream, {&numbers->sum_of_squares, stage_.options().replicas}, sync_.lateness() > 0);
}

// Adds up the step's sums over all ranks, and squares also over those of this replica.
void Step::sum_numbers() {
    Numbers* const numbers = numbers_.data();
    const cudaStream_t stream = stage_.stream();
    if (groups_.outer != nullptr) {
        CUDA_CHECK(cudaMemcpyAsync(&numbers->squares_of_replica, &numbers->sum_of_squares, sizeof(double),
                                   cudaMemcpyDeviceToDevice, stream));
        if (groups_.all) groups_.all->all_reduce(&numbers->squares_of_replica, 1, ReduceOp::sum, stream);
    }
    Communicator* const everyone = groups_.everyone();
    if (everyone) everyone->all_reduce(&numbers->loss, step_sums, ReduceOp::sum, stream);
}

void Step::add_expert_totals() {
    const auto& [counts, losses, held_rows, dropped] = stage_.expert_totals();
    Communicator* const everyone = groups_.everyone();   // so biases stay the same on all replicas
    if (everyone == nullptr || counts.size() == 0) return;
    if (fullest_ranks_.size() > 0) fullest_ranks_.upload(held_rows, stage_.stream());
    const Communicator::Group together(*everyone);
    everyone->all_reduce(counts.data(), counts.size(), ReduceOp::sum, stage_.stream());
    everyone->all_reduce(losses.data(), losses.size(), ReduceOp::sum, stage_.stream());
    if (dropped.size() > 0) everyone->all_reduce(dropped.data(), dropped.size(), ReduceOp::sum, stage_.stream());
    if (fullest_ranks_.size() == 0) return;
    everyone->all_reduce(fullest_ranks_.data(), fullest_ranks_.size(), ReduceOp::max, stage_.stream());
}

void Step::logits(floatX* out, int row, int cp_rank) {
    const MeshShape& mesh = stage_.storage().place().mesh;
    const MeshCoordinates from{mesh.pp - 1, 0, cp_rank, 0};
    if (stage_.has_head()) stage_.logits(out, row, 1);
    if (mesh.pp == 1 && mesh.cp == 1) return;
    const auto count = static_cast<std::size_t>(stage_.logits_columns());
    groups_.all->broadcast(out, count, rank_of(mesh, from), stage_.stream());
}

void Step::update(int step, float learning_rate) {
    const ProfileRange range("update");
    optimizer_->update(step, learning_rate, &numbers_.data()->norm);
    stage_.router_bias().update(stage_.expert_totals().counts.data(), &numbers_.data()->norm);
    if (sync_.zero()) sync_.zero()->parameters_changed();
    sync_.updated(&numbers_.data()->norm, &numbers_.data()->loss);
}

void Step::skip_update(int step) {
    const bool moved = optimizer_->end_local_steps(step);
    if (moved && sync_.zero()) sync_.zero()->parameters_changed();
    sync_.updated(nullptr, &numbers_.data()->loss);
}

StepResult Step::result() const {
    const ProfileRange range("wait for the step");
    const Numbers numbers = numbers_.download(stage_.stream())[0];
    StepResult result{static_cast<float>(numbers.loss), numbers.norm.norm, numbers.stop};
    const ExpertTotalsMemory& totals = stage_.expert_totals();
    if (totals.counts.size() > 0) {
        const auto experts = static_cast<std::size_t>(stage_.config().experts);
        const std::vector<double> losses = totals.router_losses.download(stage_.stream());
        const std::vector<std::int32_t> counts = totals.counts.download(stage_.stream());
        result.experts = expert_load(counts, experts);
        const int replicas = stage_.options().replicas;   // each has the mean over its own tokens
        result.experts->balance_loss = losses[0] / replicas, result.experts->z_loss = losses[1] / replicas;
        std::vector<std::int32_t> dropped;
        if (totals.dropped.size() > 0) dropped = totals.dropped.download(stage_.stream());
        result.experts->dropped = dropped_share(dropped, counts);
        if (fullest_ranks_.size() > 0) {
            const RankLayout& place = stage_.storage().place();
            result.experts->fullest_rank = rank_loads(fullest_ranks_.download(stage_.stream()), counts, dropped,
                                                      experts, replicas * group_size(place.mesh, stage_axes));
        }
    }
    return result;
}

void Step::wait_for_all_gather() {
    if (sync_.zero()) sync_.zero()->wait_for_all_gather();
}

void Step::wait_for_traffic() {
    wait_for_all_gather();
    sync_.finish();
    optimizer_->wait_for_flights();
}

StepState Step::state(int step) { return {optimizer_->began(), sync_.compressed_from(step), optimizer_->flights()}; }

std::string Step::restore(const StepState& state) {
    optimizer_->begins_after(state.moments_began);
    sync_.restore(state.compressed_from);
    return optimizer_->restore_flights(state.outer_left);
}

std::string Step::memory_by_formula() const {
    const double gradient_bytes = static_cast<double>(size_of(stage_.options().grad_dtype)) * (1 + sync_.lateness());
    ZeroMemory memory =
        zero_memory(stage_.storage(), sizeof(floatX), gradient_bytes, optimizer_->bytes_per_parameter());
    memory.gradients += sync_.bytes_kept();
    auto mebibytes = [](double bytes) { return bytes / (1 << 20); };
    return formatted(
        "  by ZeRO's formula: parameters %.2f + %.2f unsharded, gradients %.2f + %.2f unsharded, optimizer %.2f MiB",
        mebibytes(memory.parameters), mebibytes(memory.unsharded_parameters), mebibytes(memory.gradients),
        mebibytes(memory.unsharded_gradients), mebibytes(memory.optimizer));
}
