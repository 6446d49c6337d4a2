#include "llmc/run/step/gradient_sync.h"

#include <algorithm>

#include "llmc/base/log.h"
#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/kernels/optim/gradient_blocks.cuh"
#include "llmc/parallel/compression/compressed_gradients.h"
#include "llmc/parallel/gradient_sums.h"
#include "llmc/parallel/zero.h"
#include "llmc/run/options/option_names.h"

namespace {

// `optimizer`: null if the stage has no backward.
std::unique_ptr<Zero> zero_of(Stage& stage, const Optimizer* optimizer, int staleness,
                              const GradCompressionOptions& compression, const TrainingGroups& groups, Arena& arena) {
    if (groups.zero == nullptr && groups.holders == nullptr) return nullptr;
    ZeroStates states{stage.parameters(), stage.unsharded_parameters(),
                      optimizer ? optimizer->gradients() : StateBuffers(), stage.gradients().unsharded(),
                      staleness > 0};
    auto zero = std::make_unique<Zero>(stage.storage(), states,
                                       ZeroGroups{groups.zero, groups.replicas, groups.holders}, arena, stage.stream());
    Communicator* const sums = groups.replicas != nullptr ? groups.replicas : groups.zero;
    if (optimizer != nullptr && sums != nullptr && compression.how != GradCompression::none) {
        CompressionStates kept;
        kept.error = optimizer->state(kGradientError);
        if (compression.how == GradCompression::powersgd) kept.factor = optimizer->state(kGradientFactor);
        zero->sum_by(compressed_gradients(compression, optimizer->gradients(), kept, *sums, arena));
    }
    return zero;
}

}   // namespace

GradientSync::GradientSync(Stage& stage, const Optimizer* optimizer, const OptimizerOptions& options,
                           const TrainingGroups& groups, Arena& arena)
    : stage_(stage),
      optimizer_(optimizer),
      groups_(groups),
      staleness_(options.staleness),
      compression_(options.grad_compression),
      zero_(zero_of(stage, optimizer, staleness_, compression_, groups, arena)),
      partial_(stage, optimizer ? optimizer->gradients() : StateBuffers(), groups, arena) {
    if (zero_) stage.set_hooks(zero_.get());
}

GradientSync::~GradientSync() {
    if (zero_) stage_.set_hooks(nullptr);
}

void GradientSync::ends_after(int steps) { uncompressed_steps_ = steps_before_compression(compression_, steps); }

void GradientSync::begins(int step) {
    if (zero_) zero_->use_codec(step > uncompressed_steps_);
}

void GradientSync::begin_passes(int micro_batches) {
    if (zero_) zero_->begin_step(micro_batches);
}

void GradientSync::end_passes() {
    if (zero_) zero_->finish_gradients();
    if (staleness_ == 0) reducing_ = true;
    finish();
}

void GradientSync::finish() {
    if (!reducing_) return;
    if (zero_) zero_->wait_for_reductions();
    partial_.reduce();
    exchange_tied_gradients();
    reducing_ = false;
}

// Sums the gradient of tied tensors over the first and the last pipeline stage; each gets the sum for the part that its
// optimizer owns.
void GradientSync::exchange_tied_gradients() {
    Communicator* const ends = groups_.links.tied;
    const ParamStorage& storage = stage_.storage();
    if (ends == nullptr) return;
    for (const TensorLayout& tensor : storage.tensors()) {
        if (!storage.table()[tensor.param].tensor.tied) continue;
        const auto count = static_cast<std::size_t>(storage.padded_elements(tensor, StateKind::optimizer));
        sum_gradients(*ends, optimizer_->gradients().owned(tensor.param), count, stage_.stream());
    }
}

void GradientSync::updated(const GradNorm* norm, const double* loss) {
    drop_errors(norm);
    if (staleness_ > 0) delay(loss);
}

// Drops what compression keeps of gradients that are not applied: it may be as large as what made them so.
void GradientSync::drop_errors(const GradNorm* norm) {
    for (const OptimizerState& state : optimizer_->states()) {
        if (!state.of_compression) continue;
        if (norm == nullptr) {
            state.values.zero(stage_.stream());
            continue;
        }
        const ModelState<float> errors = state.values.as<float>();
        for (std::size_t slot = 0; slot < stage_.storage().units().size(); slot++) {
            const DeviceBuffer<float> unit = errors.unit(static_cast<int>(slot));
            drop_error(unit.data(), static_cast<std::int64_t>(unit.size()), &norm->skip, stage_.stream());
        }
    }
}

// Keeps the step's gradients for the next update, and starts their way to the other ranks.
void GradientSync::delay(const double* loss) {
    const StateBuffers &fresh = stage_.gradients().kept(), &delayed = optimizer_->gradients();
    for (std::size_t slot = 0; slot < stage_.storage().units().size(); slot++) {
        const int unit = static_cast<int>(slot);
        copy_delayed(delayed.unit(unit).as<float>(), fresh.unit(unit).as<float>(),
                     stage_.storage().unit_elements(stage_.storage().units()[slot], fresh.state()), loss,
                     stage_.stream());
    }
    if (zero_) zero_->reduce_delayed();
    reducing_ = true;
}

ReductionTimes GradientSync::time_reductions() {
    ENSURE(zero_ != nullptr, "one rank's gradients, which travel nowhere, timed");
    const ReductionTimes own = zero_->time_reductions();
    Arena arena;
    const auto slowest = arena.allocate<double>("compressed gradients/times", 2);
    slowest.upload(std::vector<double>{own.by_codec, own.as_they_are}, stage_.stream());
    if (Communicator* const all = groups_.everyone(); all != nullptr) {
        all->all_reduce(slowest.data(), 2, ReduceOp::max, stage_.stream());
    }
    const std::vector<double> times = slowest.download(stage_.stream());
    return {times[0], times[1]};
}

// Compression pays if it is faster, and saves at most what is not hidden behind computation as it is.
std::string GradientSync::times_in_words() {
    if (compression_.how == GradCompression::none) return "";
    const ReductionTimes times = time_reductions();
    const double saved = times.as_they_are - times.by_codec;
    return text("gradients of a step travel", groups_.replicas != nullptr ? " between groups" : "", " in ",
                formatted("%.2f", 1e3 * times.by_codec), " ms with --grad-compression ", name_of(compression_.how),
                ", in ", formatted("%.2f", 1e3 * times.as_they_are), " ms as they are, timed alone: ",
                clearly_faster(times.by_codec, times.as_they_are)
                    ? text("it saves what is not hidden behind backward of these, up to ",
                           formatted("%.2f", 1e3 * saved), " ms")
                    : "it does not pay here");
}

int GradientSync::compressed_from(int step) const {
    return compression_.how != GradCompression::none && step > uncompressed_steps_ ? uncompressed_steps_ + 1 : 0;
}

void GradientSync::restore(int compressed_from) {
    if (compressed_from > 0) uncompressed_steps_ = compressed_from - 1;   // no longer, if steps were added
}

double GradientSync::bytes_kept() const {
    double bytes = 0;
    for (const OptimizerState& state : optimizer_->states()) {
        if (state.of_compression) bytes += static_cast<double>(state.values.bytes());
    }
    return bytes;
}

std::vector<std::string> GradientSync::about_resumed(const FileSystem& files, const std::string& checkpoint, int step,
                                                     bool reset) const {
    std::vector<std::string> words;
    const ParamTable& table = stage_.table();
    const bool kept = holds_state(files, checkpoint, table, kDelayedGradient);
    if (kept && (staleness_ == 0 || reset)) {
        words.push_back(text("the gradients of step ", step, ", which --staleness 1 kept for the next, are left out"));
    } else if (!kept && staleness_ > 0) {
        words.push_back(text("--staleness 1: the checkpoint keeps no gradients, so step ", step + 1, " applies none"));
    }
    const int kept_by = saved_sums(files, checkpoint, table);
    const int sums = compressed_sums(stage_.storage().place().mesh);
    const bool compresses = compression_.how != GradCompression::none;
    if (kept_by > 0 && (!compresses || reset || kept_by != sums)) {
        words.push_back(text("what --grad-compression left out of the gradients of ", kept_by,
                             " data-parallel ranks or groups until step ", step, " is dropped",
                             compresses && kept_by != sums ? text(": now there are ", sums) : ""));
    }
    if (kept_by == 0 || reset) return words;
    for (const OptimizerState& state : optimizer_->states()) {
        if (state.of_sum && kept_by == sums) {
            const int left = tensors_not_taken(files, checkpoint, table, state);
            if (left == 0) continue;
            words.push_back(text("what --grad-compression left out of ", left, " tensors until step ", step,
                                 " is dropped: they are not compressed now"));
        }
        if (state.name == kGradientFactor && !holds_whole_state(files, checkpoint, state)) {
            words.push_back(text("--grad-compression powersgd: the checkpoint has no factors of rank ",
                                 compression_.rank, " of some matrices for this layout: these begin with new ones"));
        }
    }
    return words;
}
