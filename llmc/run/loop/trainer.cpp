#include "llmc/run/loop/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "llmc/base/printable.h"
#include "llmc/run/loop/step_trace.h"
#include "llmc/run/stopping/health.h"

Trainer::Trainer(const TrainerParts& parts)
    : options_(parts.options),
      parts_(parts),
      learning_rates_{options_.schedule,      options_.lr,         options_.warmup, parts.max_steps,
                      options_.final_lr_frac, options_.decay_steps},
      batch_(parts_),
      outliers_(parts_, batch_),
      agreement_(parts.agreement),
      reporter_(parts_),
      matmul_choices_(parts.step.stage().matmul(), agreement_),
      keeper_(parts_, matmul_choices_) {
    if (parts.val_tokens != nullptr && options_.val_every > 0) {
        validation_.emplace(parts.step, *parts.val_tokens, options_.val_max_batches, agreement_);
    }
    parts_.step.ends_after(parts_.max_steps);
    check_can_trace(options_.trace);
}

Trainer::~Trainer() = default;

void Trainer::restore(const RunState& state) {
    batch_.seek(state.loader);
    outliers_.restore(state);
    step_ = state.step;
    keeper_.went_back_to(step_);
    next_ = state.next;
    bad_steps_ = state.bad_steps;
    best_val_loss_ = state.best_val_loss;
    const std::string left_out = parts_.step.restore(state.of_step);
    if (!left_out.empty()) parts_.log.line("%s", left_out.c_str());
    parts_.step.stage().router_bias().set(state.router_bias);
}

// guarded() tells the other ranks of a failure at once, before this rank waits for a save to end.
RunEnd Trainer::run() {
    return parts_.world ? parts_.world->guarded([this] { return run_steps(); }) : run_steps();
}

// ---------------------------------------------------------------------------------------------------------------------
// The loop

RunEnd Trainer::run_steps() {
    const int first = step_ + 1, last = parts_.last_step();
    const int traced = std::min(first + 1, last);   // the second, if there are two: the first warms up
    keeper_.prepare();
    agreement_.check_stop();   // a signal during the start-up
    if (step_ < last) choose_algorithms();
    follow_step();   // the validation before the first step, or work left by an earlier run
    while (step_ < last && !agreement_.stop_asked()) {
        if (!options_.trace.empty() && step_ + 1 == traced) {
            trace_step(parts_.files, options_.trace, parts_.world, [&] { train_step(); });
            parts_.log.line("trace of step %d: %s", step_, options_.trace.c_str());
        } else {
            train_step();
        }
        keeper_.advance();
        if (step_ == first) settle_first_step();
        if (spike_ && !rewind()) return RunEnd::bad_steps;
        if (options_.max_bad_steps > 0 && bad_steps_ >= options_.max_bad_steps) return end_at_bad_steps();
        follow_step();
    }
    parts_.step.wait_for_all_gather();   // for readers of the parameters after the run
    if (agreement_.stop_asked()) return end_at_signal();
    if (step_ < parts_.max_steps) save_checkpoint();
    keeper_.settle();
    if (step_ < parts_.max_steps) {
        parts_.log.line("--stop-after %d: stopped after step %d of %d", options_.stop_after, step_, parts_.max_steps);
        return RunEnd::stop_requested;
    }
    parts_.log.line("total average iteration time: %f ms", 1e3 * reporter_.mean_s());
    return RunEnd::finished;
}

void Trainer::train_step() {
    const double start = steady_seconds();
    batch_.begin(step_ + 1);
    const float token_share = 1.0f / static_cast<float>(batch_.count_targets(agreement_));
    reporter_.passes_begin();
    parts_.step.sync().begins(step_ + 1);
    parts_.step.gradients(batch_.schedule(), batch_.reader(), token_share, [this] {
        reporter_.passes_end();
        StopVotes vote = agreement_.own_vote();
        vote.saved = keeper_.has_written() ? 1 : 0;
        return vote;
    });
    step_++;
    next_ = StepPhase::validation;
    if (parts_.world) parts_.world->set_step(step_);
    if (parts_.world) parts_.world->will_wait();   // for these sums, not for the parameters that travel after them
    const float lr = learning_rate(learning_rates_, step_) *
                     lr_factor(options_.lr_scaling, batch_.tokens(), options_.tokens_of_lr());
    const bool host_decides = outliers_.skips_updates();
    if (!host_decides) parts_.step.update(step_, lr);
    batch_.read_ahead();
    const StepResult result = parts_.step.result();   // the host waits here
    const bool outlier = outliers_.is_outlier(result);
    if (host_decides) {
        if (outlier) {
            parts_.step.skip_update(step_);
        } else {
            parts_.step.update(step_, lr);
        }
        wait_for(parts_.step.stage().stream());   // the update is a part of the step's time
    }
    agreement_.take_votes(result.stop);
    if (parts_.world) parts_.world->has_waited();
    reporter_.step_ends(start);
    examine(result);   // may read the samples again
    reporter_.report(batch_, result, outliers_.scores(), lr);
    batch_.end_step();
    if (options_.check_replicas > 0 && step_ % options_.check_replicas == 0) {
        check_replicas(step_, tensors_of(parts_.step), parts_.step.stage().stream(), agreement_);
    }
    if (outlier && options_.spike_rewind > 0) spike_ = result;
}

// Does the work after the current step, from next_ on, until a request to stop.
void Trainer::follow_step() {
    const bool is_last = step_ == parts_.max_steps;
    const auto every = [&](int steps) { return step_ > 0 && steps > 0 && (step_ % steps == 0 || is_last); };
    const bool validates = validation_ && every(options_.val_every);
    const bool has_questions = parts_.evaluations && !parts_.evaluations->empty();
    // evaluations would tell nothing before the first step
    if (has_turn(StepPhase::validation, validates || (validation_ && step_ == 0)) && validate())
        next_ = phase_after(next_);
    if (has_turn(StepPhase::evaluation, validates && has_questions) && evaluate()) next_ = phase_after(next_);
    if (has_turn(StepPhase::sample, parts_.sampler && every(options_.sample_every)))
        write_samples(), next_ = phase_after(next_);
    const bool saves = every(options_.checkpoint_every) || is_last;
    if (has_turn(StepPhase::checkpoint, saves)) save_checkpoint(), next_ = phase_after(next_);
}

// Returns true if a work is to be done now; next_ moves on once it is done. Passes over a work that is not due. After a
// request to stop next_ stays, and what follows has no turn.
bool Trainer::has_turn(StepPhase work, bool is_due) {
    if (next_ != work || (is_due && agreement_.stop_asked())) return false;
    if (!is_due) next_ = phase_after(work);
    return is_due;
}

bool Trainer::validate() {
    const std::optional<float> loss = validation_->loss();
    if (!loss) return false;
    ValidationRecord record{.loss = *loss, .bits_per_byte = validation_->bits_per_byte()};
    std::string words = in_words(record.bits_per_byte);
    for (const SourceLoss& source : validation_->by_source()) {
        record.loss_of.emplace_back(source.name, source.loss);
        if (source.bits_per_byte) record.bits_per_byte_of.emplace_back(source.name, *source.bits_per_byte);
        words += formatted(" | %s %f", source.name.c_str(), static_cast<double>(source.loss));
    }
    parts_.metrics.validation(step_, record);
    parts_.log.line("val loss %f%s", static_cast<double>(*loss), words.c_str());
    if (step_ > 0 && std::isfinite(*loss) && (!best_val_loss_ || *loss < *best_val_loss_)) {
        best_val_loss_ = *loss;
        if (options_.keep_best) keeper_.save_best(state_now(phase_after(StepPhase::validation)));
    }
    return true;
}

bool Trainer::evaluate() {
    for (const std::unique_ptr<Evaluation>& evaluation : *parts_.evaluations) {
        const std::optional<EvaluationResult> result = evaluation->run(agreement_);
        if (!result) return false;
        parts_.metrics.evaluation(step_, evaluation->record_of(*result));
        parts_.log.line("%s", evaluation->in_words(*result).c_str());
    }
    return true;
}

void Trainer::write_samples() {
    for (int number = 0; number < options_.sample_count; number++) {
        const std::string which = options_.sample_count > 1 ? text(" ", number + 1, " of ", options_.sample_count) : "";
        const std::string sample = parts_.sampler->sample(step_, number);
        parts_.log.block(text("generating", which, ":\n---\n", sample, "\n---\n"));
        parts_.metrics.tell("sample", printable(sample));
    }
}

void Trainer::save_checkpoint() {
    if (options_.output_dir.empty()) return;
    keeper_.save(state_now(next_ < StepPhase::checkpoint ? next_ : StepPhase::next_step));
}

RunState Trainer::state_now(StepPhase next) const {
    RunState state;
    state.step = step_;
    state.seed = options_.seed;
    state.loader = batch_.loader();
    state.windows = parts_.train_tokens.windows();
    outliers_.save_to(state);
    state.attention = parts_.step.stage().attention().kind();
    state.next = next;
    state.bad_steps = bad_steps_;
    state.best_val_loss = best_val_loss_;
    state.optimizer = options_.optimizer;
    state.of_step = parts_.step.state(step_);
    state.router_bias = parts_.step.stage().router_bias().values();
    return state;
}

// Times matmul algorithms before the first step: makes its passes twice, over as many micro-batches as meet every
// problem, and discards the results. The step overwrites them; problems that it meets later are agreed on by all ranks.
// Gradients of weights come first, because time may run out: a pass meets them last, although they are a third of the
// work, run beside collectives and have the most problems, since each overwrites its sum and later adds to it. The
// optimizer's own matmuls come last.
void Trainer::choose_algorithms() {
    Step& step = parts_.step;
    Matmul& matmul = step.stage().matmul();
    if (!matmul.tries_algorithms()) return;
    const double start = steady_seconds();
    step.sync().begins(0);
    // a step's first micro-batch overwrites gradients, the second adds to them; a pipeline is filled twice
    for (const bool weight_gradients_only : {true, false}) {
        matmul.try_weight_gradients_only(weight_gradients_only);
        batch_.begin(step_ + 1, 2 * options_.pp * options_.tokens_per_micro_step());
        step.gradients(batch_.schedule(), batch_.reader(), 1.0f);
        step.result();   // waits for the step
        batch_.end();
    }
    step.optimizer().try_matmuls();
    matmul_choices_.agree();
    matmul.stop_trying();
    const std::vector<MatmulAlgorithm> chosen = matmul.algorithms();
    const auto own_kernels = std::ranges::count_if(chosen, &MatmulAlgorithm::is_own_kernel);
    parts_.log.line("matmul algorithms: chosen by timing them, in %.1f s; own kernels for %lld of %zu products",
                    steady_seconds() - start, static_cast<long long>(own_kernels), chosen.size());
}

// Tells what the first step, which has met every matmul problem, has shown; agrees on algorithms. Collective.
void Trainer::settle_first_step() {
    const Matmul& matmul = parts_.step.stage().matmul();
    for (const std::string& why : matmul.refused_algorithms()) {
        parts_.log.warning("a matmul algorithm of the checkpoint does not fit here, another was chosen: %s",
                           why.c_str());
    }
    for (const std::string& what : matmul.unfused()) parts_.log.warning("%s", what.c_str());
    matmul_choices_.agree();
    const std::string pairs = batch_.pairs_in_words(agreement_);
    if (!pairs.empty()) parts_.log.line("%s", pairs.c_str());
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps that go wrong

// Counts bad steps in a row, and names the first bad tensor of the first. Collective: every rank has seen the result.
void Trainer::examine(const StepResult& result) {
    if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
        bad_steps_ = 0;
        return;
    }
    Step& step = parts_.step;
    std::string where = "as before";
    if (bad_steps_++ == 0) {
        const std::string activation =
            first_not_finite_activation(step, batch_.reader(), micro_batches_of(batch_.schedule()));
        where = earliest(agreement_.gather(
            first_not_finite(tensors_of(step), step.stage().gradients(), step.stage().stream(), activation)));
        if (const int late = step.sync().lateness(); late > 0 && std::isfinite(result.loss)) {
            where = text("the gradients are those of step ", step_ - late, "; in this one ", where);
        }
    }
    parts_.log.warning("step %d: loss %g, gradient norm %g: not finite, update skipped; %s", step_,
                       static_cast<double>(result.loss), static_cast<double>(result.grad_norm), where.c_str());
}

// Goes back to the last good checkpoint, with the loader past the samples since. Collective: every rank has seen the
// same outlier. Returns false if the run went back too often.
bool Trainer::rewind() {
    const StepResult spike = *std::exchange(spike_, std::nullopt);
    const int from = step_;
    const auto found = keeper_.newest();
    if (!found || found->step >= from) {
        parts_.log.warning("step %d: there is no checkpoint to go back to", from);
        return true;
    }
    if (std::exchange(rewound_to_, found->step) != found->step) rewinds_ = 0;
    if (rewinds_++ == options_.spike_rewind) {
        parts_.log.warning(
            "step %d: --spike-rewind %d: so often the run went back to step %d without a newer checkpoint: "
            "stopped\n  Resume from it with a lower --lr, a --grad-clip, or higher z-scores.",
            from, options_.spike_rewind, found->step);
        return false;
    }
    RunState state = keeper_.load(*found);
    const auto samples = static_cast<std::uint64_t>(batch_.tokens(state.step, from) / options_.seq_len);
    state.loader = batch_.loader();
    restore(state);
    if (parts_.world) parts_.world->set_step(step_);
    parts_.metrics.rewind({step_, from, spike.loss, spike.grad_norm, samples}, next_);
    parts_.log.warning("step %d was an outlier: back to %s, past %llu samples", from, found->path.c_str(),
                       static_cast<unsigned long long>(samples));
    return true;
}

// Saves all that is done and ends the run.
RunEnd Trainer::end_at_signal() {
    save_checkpoint();
    keeper_.settle();
    parts_.log.line("%s: stopped after step %d of %d%s%s", agreement_.why_stop().c_str(), step_, parts_.max_steps,
                    next_ < StepPhase::checkpoint && step_ > 0 ? text(", before its ", name_of(next_)).c_str() : "",
                    options_.output_dir.empty() ? "; nothing is saved without --output-dir" : "");
    return RunEnd::signal;
}

// Ends without a checkpoint: weights and moments are as before the first of those steps, so a resumed run would meet
// the same again; the records tell what happened.
RunEnd Trainer::end_at_bad_steps() {
    parts_.step.wait_for_all_gather();
    keeper_.finish_save();   // saves an earlier step
    parts_.log.warning(
        "the loss or gradient norm of %d steps in a row is not finite: stopped after step %d of %d\n"
        "  Look at the steps before in metrics.jsonl, then resume from a checkpoint with a lower --lr, a longer "
        "--warmup or a --grad-clip. --max-bad-steps says how many are borne.",
        bad_steps_, step_, parts_.max_steps);
    return RunEnd::bad_steps;
}
