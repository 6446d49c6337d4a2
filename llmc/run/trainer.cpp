#include <algorithm>
#include <cmath>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/step_trace.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/trainer.h"

namespace {

// Progress lines where there is no terminal: the first steps, to see that the run works, then one every few seconds.
constexpr int kFirstLines = 10;
constexpr double kSecondsPerLine = 5;

}   // namespace

Trainer::Trainer(const TrainerParts& parts)
    : options_(parts.options),
      parts_(parts),
      tokens_(options_.tokens_by_step()),
      lengths_(options_.seq_len_by_step()),
      peak_{parts.peak_flops_per_s, true},
      loader_(parts.train_tokens, options_.seed, phases_of(options_, parts.train_tokens)),
      agreement_(parts.arena, parts.groups.all, parts.world, parts.signals, parts.step.stage().stream()),
      exposed_waits_(parts.step.stage().stream()),
      slowest_rank_(parts.step.stage(), parts.groups.all, parts.arena),
      // every rank that writes a unit gets tensors
      gatherer_(parts.step.stage().storage(), parts.groups.stage,
                parts.groups.stage && parts.groups.stage->rank() < parts.step.stage().table().units(), parts.arena,
                parts.step.stage().stream(), 1 << 20, parts.groups.all) {
    if (parts.val_tokens != nullptr && options_.val_every > 0) {
        validation_.emplace(parts.step, *parts.val_tokens, options_.val_max_batches, agreement_);
    }
    check_can_trace(options_.trace);
    learning_rates_ = {options_.schedule,      options_.lr,         options_.warmup, parts_.max_steps,
                       options_.final_lr_frac, options_.decay_steps};
}

void Trainer::take_batch_of_tokens(std::int64_t tokens) {
    const auto sequences = static_cast<std::uint64_t>(tokens / options_.seq_len);
    if (sequences == std::exchange(sequences_, sequences)) return;
    schedule_ = schedule_of_stage(options_.with_batch(tokens), parts_.step.stage().storage().place().at.pp);
}

void Trainer::cut_sequences(int length) {
    parts_.step.stage().set_batch_shape(options_.micro_batch * (options_.seq_len / length), length);
}

void Trainer::restore(const RunState& state) {
    loader_.seek(state.loader);
    loss_outliers_.restore(state.loss_outliers);
    norm_outliers_.restore(state.norm_outliers);
    step_ = saved_step_ = state.step;
    best_step_ = 0;
    next_ = state.next;
    bad_steps_ = state.bad_steps;
    best_val_loss_ = state.best_val_loss;
    parts_.step.optimizer().begins_after(state.moments_began);
    parts_.step.stage().router_bias().set(state.router_bias);
}

// guarded() tells the other ranks of a failure at once, before this rank waits for a save to end.
RunEnd Trainer::run() {
    return parts_.world ? parts_.world->guarded([this] { return run_steps(); }) : run_steps();
}

RunEnd Trainer::run_steps() {
    const int end = end_of_run();
    const int first = step_ + 1;
    if (!options_.output_dir.empty()) {   // allocated now, because it takes time, and must not fail after the last step
        host_tensors_.emplace(tensors_of(parts_.step), gatherer_);
    }
    const int traced_step = std::min(step_ + 1, end - 1);   // the second, if there are two: the first warms up
    agreement_.ask();                                       // a signal during the start-up
    if (step_ < end) choose_algorithms();
    follow_step();   // the validation before the first step, or work left by an earlier run
    while (step_ < end && !agreement_.stop_asked()) {
        if (!options_.trace.empty() && step_ == traced_step) {
            trace_step(parts_.files, options_.trace, parts_.world, [&] { train_step(); });
            parts_.log.line("trace of step %d: %s", step_, options_.trace.c_str());
        } else {
            train_step();
        }
        // all ranks know this sum since the step
        if (save_ && agreement_.stop().saved == agreement_.ranks()) {
            save_->advance();
            if (save_->is_over()) end_save();
        }
        if (step_ == first) {   // every problem has occurred
            for (const std::string& why : parts_.step.stage().matmul().refused_algorithms()) {
                parts_.log.warning("a matmul algorithm of the checkpoint does not fit here, another was chosen: %s",
                                   why.c_str());
            }
            for (const std::string& what : parts_.step.stage().matmul().unfused()) {
                parts_.log.warning("%s", what.c_str());
            }
            agree_on_algorithms();
            if (options_.document_mask) say_pairs();
        }
        if (spike_ && !rewind()) return RunEnd::bad_steps;
        if (options_.max_bad_steps > 0 && bad_steps_ >= options_.max_bad_steps) return end_at_bad_steps();
        follow_step();
    }
    parts_.step.wait_for_all_gather();   // for readers of the parameters after the run
    if (agreement_.stop_asked()) return end_at_signal();
    if (step_ < parts_.max_steps) save_checkpoint();
    settle_saves();
    if (step_ < parts_.max_steps) {
        parts_.log.line("--stop-after %d: stopped after step %d of %d", options_.stop_after, step_, parts_.max_steps);
        return RunEnd::stop_requested;
    }
    parts_.log.line("total average iteration time: %f ms", 1e3 * timing_.mean_s());
    return RunEnd::finished;
}

// Does the work after the current step, from next_ on, until a request to stop.
void Trainer::follow_step() {
    using Work = bool (Trainer::*)();   // returns false if a request to stop came before its end
    static constexpr Work works[] = {&Trainer::validate, &Trainer::evaluate, &Trainer::write_sample,
                                     &Trainer::save_checkpoint};
    for (; next_ != AfterStep::next_step; next_ = after(next_)) {
        if (!is_due(next_)) continue;
        const Work work = works[static_cast<int>(next_)];
        if (agreement_.stop_asked() || !(this->*work)()) return;
    }
}

bool Trainer::is_due(AfterStep work) const {
    auto every = [this](int steps) {
        return step_ > 0 && steps > 0 && (step_ % steps == 0 || step_ == parts_.max_steps);
    };
    switch (work) {
        case AfterStep::validation: return validation_ && (every(options_.val_every) || step_ == 0);
        // with every validation but the first, which would tell nothing before the first step
        case AfterStep::evaluation:
            return parts_.evaluations && !parts_.evaluations->empty() && validation_ && every(options_.val_every);
        case AfterStep::sample: return parts_.sampler && every(options_.sample_every);
        case AfterStep::checkpoint: return every(options_.checkpoint_every) || step_ == parts_.max_steps;
        default: return false;
    }
}

// Saves all that is done and ends the run.
RunEnd Trainer::end_at_signal() {
    save_checkpoint();
    settle_saves();
    const std::string own = parts_.signals.received();
    parts_.log.line("%s: stopped after step %d of %d%s%s",
                    (own.empty() ? agreement_.stop().words() + " received" : own).c_str(), step_, parts_.max_steps,
                    next_ < AfterStep::checkpoint && step_ > 0 ? text(", before its ", name_of(next_)).c_str() : "",
                    options_.output_dir.empty() ? "; nothing is saved without --output-dir" : "");
    return RunEnd::signal;
}

// Ends without a checkpoint: weights and moments are as before the first of those steps, so a resumed run would meet
// the same again; the records tell what happened.
RunEnd Trainer::end_at_bad_steps() {
    parts_.step.wait_for_all_gather();
    end_save();   // saves an earlier step
    parts_.log.warning(
        "the loss or gradient norm of %d steps in a row is not finite: stopped after step %d of %d\n"
        "  Look at the steps before in metrics.jsonl, then resume from a checkpoint with a lower --lr, a longer "
        "--warmup "
        "or a --grad-clip. --max-bad-steps says how many are borne.",
        bad_steps_, step_, parts_.max_steps);
    return RunEnd::bad_steps;
}

// Times matmul algorithms before the first step: makes its passes once, over as many micro-batches as meet every
// problem, and discards the result. The step overwrites it; problems that it meets later are agreed on by all ranks.
void Trainer::choose_algorithms() {
    Step& step = parts_.step;
    Matmul& matmul = step.stage().matmul();
    if (!matmul.tries_algorithms()) return;
    const double start = steady_seconds();
    const int next = step_ + 1;
    length_ = static_cast<int>(lengths_.at(next));
    cut_sequences(length_);
    // a step's first micro-batch overwrites gradients, the second adds to them; a pipeline is filled twice
    take_batch_of_tokens(std::min(tokens_.at(next), 2 * options_.pp * options_.tokens_per_micro_step()));
    step.gradients(schedule_, reader(), 1.0f);
    step.result();   // waits for the step
    agree_on_algorithms();
    matmul.stop_trying();
    cut_sequences(options_.seq_len);
    parts_.log.line("matmul algorithms: chosen by timing them, in %.1f s", steady_seconds() - start);
}

// Makes all ranks use the same algorithms, which checkpoints then hold: for each problem that of the lowest rank that
// has it.
void Trainer::agree_on_algorithms() {
    Matmul& matmul = parts_.step.stage().matmul();
    const std::string own = matmul_choices_text(matmul);
    std::vector<std::string> by_rank = agreement_.gather(own == matmul_choices_ ? "" : own);   // "": nothing new
    if (std::all_of(by_rank.begin(), by_rank.end(), [](const std::string& text) { return text.empty(); })) return;
    std::replace(by_rank.begin(), by_rank.end(), std::string(), matmul_choices_);
    matmul_choices_ = merged_matmul_choices(by_rank);
    if (matmul_choices_ != own) use_matmul_choices(matmul_choices_, "the table of all ranks", matmul);
}

int Trainer::end_of_run() const {
    return options_.stop_after > 0 ? std::min(options_.stop_after, parts_.max_steps) : parts_.max_steps;
}

// ---------------------------------------------------------------------------------------------------------------------
// One step

void Trainer::read_micro_batch(int micro_step, const MicroBatch& to) {
    const std::uint64_t B = static_cast<std::uint64_t>(options_.micro_batch);
    const ShardPlace& place = parts_.step.stage().storage().place();   // samples are dealt out over dp alone
    const std::uint64_t first = static_cast<std::uint64_t>(micro_step * place.mesh.dp + place.at.dp) * B;
    const bool of_next = micro_step >= micro_batches_of(schedule_);   // read ahead for the next step
    const std::int64_t length = of_next ? lengths_.at(step_ + 1) : length_;
    std::vector<TokenRange> ranges;   // this cp rank's tokens of each sample; cp cuts every sequence of a sample
    for (std::int64_t begin = 0; begin < options_.seq_len; begin += length) {
        for (TokenRange range : token_ranges(parts_.step.stage().context(), length)) {
            ranges.push_back({begin + range.begin, range.length});
        }
    }
    const ContextCut cut = parts_.step.stage().context();
    std::vector<TokenRange> attended;
    if (!to.starts.empty()) attended = attended_ranges(cut, length);
    if (!options_.overfit_single_batch) {
        loader_.read(first, B, ranges, to.tokens, to.targets);
        if (!to.starts.empty()) loader_.read_starts(first, B, length, attended, to.starts);
    } else {
        const TokenSet& tokens = parts_.train_tokens;
        const std::size_t T = to.tokens.size() / B, n = to.starts.size() / B;   // tokens of a sequence on this rank
        for (std::uint64_t b = 0; b < B; b++) {
            const std::uint64_t window = (first + b) % tokens.windows();
            tokens.read_window(window, ranges, to.tokens.subspan(b * T, T), to.targets.subspan(b * T, T));
            if (n > 0) tokens.read_starts(window, length, attended, to.starts.subspan(b * n, n));
        }
    }
    if (!of_next && !to.starts.empty()) pairs_ += visible_pairs(to.starts, cut, length);
}

Pipeline::Read Trainer::reader() {
    return [this](int micro_step, const MicroBatch& to) { read_micro_batch(micro_step, to); };
}

// Returns how many positions of all ranks' samples have a loss. If some have none, each rank counts some of the
// samples; then it is collective and waits.
double Trainer::targets_of_step(std::int64_t tokens) {
    const TokenSet& of = parts_.train_tokens;
    if (of.documents().boundary_loss) return static_cast<double>(tokens);
    const auto rank = static_cast<std::uint64_t>(agreement_.rank()),
               ranks = static_cast<std::uint64_t>(agreement_.ranks());
    std::int64_t own = 0;
    if (options_.overfit_single_batch) {
        for (std::uint64_t i = rank; i < sequences_; i += ranks) own += of.count_targets(i % of.windows());
    } else {
        const std::uint64_t begin = sequences_ * rank / ranks, end = sequences_ * (rank + 1) / ranks;
        for (const SampleId& id : loader_.samples(begin, end - begin)) own += of.count_targets(id.window);
    }
    return std::max(agreement_.sum(static_cast<double>(own)), 1.0);
}

// Reports the share of attention's pairs that masks leave, and how evenly ranks share them. Collective.
void Trainer::say_pairs() {
    const ShardPlace& place = parts_.step.stage().storage().place();
    double all = 0, most = 0;
    const std::vector<std::string> by_rank = agreement_.gather(text(pairs_));
    for (const std::string& of_rank : by_rank) {
        const double pairs = std::stod(of_rank);
        all += pairs, most = std::max(most, pairs);
    }
    const double mean = all / static_cast<double>(by_rank.size());
    const double causal = static_cast<double>(sequences_) / place.mesh.dp * options_.seq_len * (length_ + 1.0) / 2 /
                          parts_.step.stage().context().ring_size();
    parts_.log.line(
        "document mask: of this step's pairs of a query and an earlier key %.1f%% are of one document; the "
        "rank with most has %.2f times the mean",
        100 * mean / causal, most / mean);
}

// Reads the first micro-batch of the next step while the device works on this one.
void Trainer::read_ahead() {
    if (step_ == end_of_run() || options_.overfit_single_batch) return;
    if (options_.document_mask && lengths_.at(step_ + 1) != length_)
        return ahead_.reset();   // documents are cut differently
    const std::optional<LoaderState> next = loader_.after(sequences_);
    try {
        parts_.step.read_ahead(reader(), micro_batches_of(schedule_));
        ahead_ = next;
    } catch (const Error& error) {   // an error in the data: the next step reads them again and reports it
        if (error.kind() != ErrorKind::bad_data && error.kind() != ErrorKind::io) throw;
        ahead_.reset();
    }
}

void Trainer::train_step() {
    const double start = steady_seconds();
    if (ahead_ != loader_.state()) parts_.step.forget_read_ahead();
    take_batch_of_tokens(tokens_.at(step_ + 1));
    length_ = static_cast<int>(lengths_.at(step_ + 1));
    cut_sequences(length_);
    const std::int64_t tokens = tokens_.at(step_ + 1);
    const float token_share = 1.0f / static_cast<float>(targets_of_step(tokens));
    pairs_ = 0;
    if (agreement_.rank() == 0) exposed_waits_.step_begins();   // rank 0 writes the records
    slowest_rank_.step_begins();
    parts_.step.gradients(schedule_, reader(), token_share, [this] {
        slowest_rank_.passes_end();
        StopVotes vote = agreement_.own_vote();
        vote.saved = save_ && save_->ready() ? 1 : 0;
        return vote;
    });
    step_++;
    next_ = AfterStep::validation;
    if (parts_.world) parts_.world->set_step(step_);

    if (parts_.world) parts_.world->will_wait();   // for these sums, not for the parameters that travel after them
    const float lr =
        learning_rate(learning_rates_, step_) * lr_factor(options_.lr_scaling, tokens, options_.tokens_of_lr());
    const bool host_decides = options_.skip_loss_z > 0 || options_.skip_norm_z > 0;   // decides if the update runs
    if (!host_decides) parts_.step.update(step_, lr);
    read_ahead();
    const StepResult result = parts_.step.result();   // the host waits here
    const bool outlier = is_outlier(result);
    if (host_decides && !outlier) {
        parts_.step.update(step_, lr);
        wait_for(parts_.step.stage().stream());   // the update is a part of the step's time
    }
    exposed_waits_.step_ends();
    agreement_.note(result.stop);
    if (parts_.world) parts_.world->has_waited();
    report_step(result, lr, steady_seconds() - start);
    cut_sequences(options_.seq_len);   // the work between steps uses whole sequences
    loader_.advance(sequences_);       // not earlier: report_step may read this step's samples again
    if (options_.check_replicas > 0 && step_ % options_.check_replicas == 0) check_replicas();
    if (outlier && options_.spike_rewind > 0) spike_ = result;
}

// Goes back to the last good checkpoint, with the loader past the samples since. Collective: every rank has seen the
// same outlier. Returns false if the run went back too often.
bool Trainer::rewind() {
    const StepResult spike = *std::exchange(spike_, std::nullopt);
    const int from = step_;
    end_save();
    parts_.step.wait_for_all_gather();
    std::vector<std::string> skipped;
    std::optional<Communicator::LocalWork> work;   // each rank hashes and reads its share in its own time
    const auto gather = [&](const std::string& own) {
        work.reset();
        std::vector<std::string> by_rank = agreement_.gather(own);
        work.emplace(parts_.groups.all, "reads a checkpoint");
        return by_rank;
    };
    const auto found =
        newest_checkpoint(parts_.files, options_.output_dir, skipped, {agreement_.rank(), agreement_.ranks(), gather});
    for (const std::string& reason : skipped) parts_.log.warning("checkpoint passed over: %s", reason.c_str());
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
    RunState state = load_training_state(parts_.files, found->path, tensors_of(parts_.step),
                                         parts_.step.stage().stream(), options_.optimizer);
    const auto samples = static_cast<std::uint64_t>(tokens_.sum(state.step, from) / options_.seq_len);
    work.reset();
    state.loader = loader_.state();
    restore(state);
    if (parts_.world) parts_.world->set_step(step_);
    parts_.metrics.rewind({step_, from, spike.loss, spike.grad_norm, samples}, next_);
    parts_.log.warning("step %d was an outlier: back to %s, past %llu samples", from, found->path.c_str(),
                       static_cast<unsigned long long>(samples));
    return true;
}

void Trainer::check_replicas() {
    const ReplicaHashes own = replica_hashes(tensors_of(parts_.step), parts_.step.stage().stream());
    if (differing_replicas(agreement_.gather(own.groups)).empty()) return;
    const std::string differs = differing_replicas(agreement_.gather(own.tensors));
    throw Error(ErrorKind::resumable, text("--check-replicas: after step ", step_, " ", differs),
                "A device or its memory may be faulty. Resume from a checkpoint, without that device if you can.");
}

// Names the samples of the current step for messages, as SOURCE EPOCH/WINDOW.
std::string Trainer::samples_of_step() const {
    constexpr std::uint64_t most = 32;
    std::string words;
    for (const SampleId& id : loader_.samples(0, std::min(sequences_, most))) {
        const std::string& source = parts_.train_tokens.sources()[id.source].data.name;
        words += text(words.empty() ? "" : ", ", source, source.empty() ? "" : " ", id.epoch, "/", id.window);
    }
    return sequences_ > most ? text(words, " and ", sequences_ - most, " more") : words;
}

// Adds loss and norm to the windows of past values; returns true if one is too far above them.
bool Trainer::is_outlier(const StepResult& result) {
    loss_z_ = loss_outliers_.update(result.loss);
    norm_z_ = norm_outliers_.update(result.grad_norm);
    bool outlier = false;
    auto check = [&](const char* what, const char* flag, double z, float limit) {
        if (limit <= 0 || !(z > limit)) return;   // NaN: no score yet
        parts_.log.warning(
            "step %d: the %s's z-score %.2f is above %s %g: update skipped\n"
            "  `train_gpt data --samples %d` with the run's options shows what it read: %s",
            step_, what, z, flag, static_cast<double>(limit), step_, samples_of_step().c_str());
        outlier = true;
    };
    check("loss", "--skip-loss-z", loss_z_, options_.skip_loss_z);
    check("gradient norm", "--skip-norm-z", norm_z_, options_.skip_norm_z);
    return outlier;
}

// Names the first bad tensor of a step whose loss or gradient norm is not finite. Collective: every rank has seen that.
std::string Trainer::first_bad_tensor() {
    Step& step = parts_.step;
    const std::int64_t pairs = pairs_;   // kept, because the micro-batches are read again
    const std::string activation = first_not_finite_activation(step, reader(), micro_batches_of(schedule_));
    pairs_ = pairs;
    return earliest(agreement_.gather(
        first_not_finite(tensors_of(step), step.stage().gradients(), step.stage().stream(), activation)));
}

void Trainer::report_step(const StepResult& result, float lr, double seconds) {
    const bool is_bad = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
    if (is_bad) {
        std::string where = "as before";   // only the first of several in a row is examined
        if (bad_steps_ == 0) where = first_bad_tensor();
        parts_.log.warning("step %d: loss %g, gradient norm %g: not finite, update skipped; %s", step_,
                           static_cast<double>(result.loss), static_cast<double>(result.grad_norm), where.c_str());
    }
    bad_steps_ = is_bad ? bad_steps_ + 1 : 0;
    if (timing_.steps > 0 || step_ > 1) timing_.total_s += seconds;
    timing_.steps += step_ > 1;

    StepRecord record{};
    record.step = step_;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = lr;
    record.tokens_per_s = static_cast<double>(tokens_.at(step_)) / seconds;
    if (peak_.per_second > 0) {
        record.mfu = share_of_peak(peak_, record.tokens_per_s * flops_per_token(parts_.step.stage().config(), length_) /
                                              parts_.step.stage().storage().place().mesh.size());
    }
    record.step_ms = 1e3 * seconds;
    record.waiting = slowest_rank_.step_ended(seconds);
    for (const auto& [group, waited] : exposed_waits_.seconds()) record.exposed_ms[group] = 1e3 * waited;
    record.memory_bytes = parts_.arena.high_water();
    record.gpu = gpu_.state();
    record.experts = result.experts;
    parts_.metrics.step(record);

    const double mean = timing_.steps > 0 ? timing_.mean_s() : seconds;
    const int last = end_of_run();
    auto z_score = [](double z) { return std::isnan(z) ? std::string() : formatted(" (%+.2fz)", z); };
    const std::string gpu = record.gpu ? formatted(" | GPU %u%% %.0f W %u C", record.gpu->utilization,
                                                   record.gpu->watts, record.gpu->celsius)
                                       : "";
    std::string exposed;
    for (const auto& [group, ms] : record.exposed_ms) {
        exposed += formatted("%s %s %.2f", exposed.empty() ? " | exposed" : ",", group.c_str(), ms);
    }
    if (!exposed.empty()) exposed += " ms";
    const std::string experts =
        record.experts ? formatted(" | experts %.2f-%.2f", record.experts->emptiest, record.experts->fullest) : "";
    const std::string mfu = record.mfu ? formatted("%.1f%% %s MFU", 100 * *record.mfu, precision_name) : "MFU unknown";
    parts_.log.progress(
        formatted(
            "step %4d/%d | loss %.6f%s | norm %.4f%s | lr %.2e | ETA %s | %.2f ms%s | %.0f tok/s | %s | %.0f MiB%s%s",
            step_, parts_.max_steps, static_cast<double>(result.loss), z_score(loss_z_).c_str(),
            static_cast<double>(result.grad_norm), z_score(norm_z_).c_str(), static_cast<double>(lr),
            duration_text(mean * (last - step_)).c_str(), record.step_ms, exposed.c_str(), record.tokens_per_s,
            mfu.c_str(), static_cast<double>(record.memory_bytes) / (1 << 20), gpu.c_str(), experts.c_str()),
        line_is_due(last));
}

bool Trainer::line_is_due(int last) {
    const double now = steady_seconds();
    const bool due = options_.log_every > 0 ? step_ == 1 || step_ % options_.log_every == 0
                                            : lines_ < kFirstLines || now - last_line_s_ >= kSecondsPerLine;
    if (!due && step_ != last) return false;
    lines_++;
    last_line_s_ = now;
    return true;
}
