#include <algorithm>
#include <chrono>
#include <cmath>

#include "llmc/kernels/classifier.cuh"
#include "llmc/train/matmul_choices.h"
#include "llmc/train/step_trace.h"
#include "llmc/train/trainer.h"

namespace {

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "45s", "12m05s", "3h20m".
std::string duration(double seconds) {
    const long long s = std::llround(seconds);
    if (s < 60) return formatted("%llds", s);
    if (s < 3600) return formatted("%lldm%02llds", s / 60, s % 60);
    return formatted("%lldh%02lldm", s / 3600, s % 3600 / 60);
}

}   // namespace

Trainer::Trainer(const TrainerParts& parts)
    : options_(parts.options),
      parts_(parts),
      max_steps_(parts.max_steps),
      sequences_(static_cast<int>(options_.tokens_per_step() / options_.seq_len)),
      loader_(parts.train_tokens, options_.seed),
      batch_(parts.arena, options_.micro_batch, options_.seq_len, parts.model.config().vocab_size),
      inputs_(static_cast<std::size_t>(options_.micro_batch) * static_cast<std::size_t>(options_.seq_len)),
      targets_(inputs_.size()),
      val_loss_(parts.arena.allocate<float>("step/val_loss", 1)),
      stop_(parts.arena.allocate<std::int32_t>("step/stop", 1)) {
    check_can_trace(options_.trace);
    schedule_ = {options_.schedule, options_.lr, options_.warmup, max_steps_, options_.final_lr_frac};
}

void Trainer::restore(const RunState& state) {
    loader_.seek(state.loader);
    loss_outliers_.restore(state.loss_outliers);
    norm_outliers_.restore(state.norm_outliers);
    step_ = saved_step_ = state.step;
}

RunEnd Trainer::run() {
    const int end = options_.stop_after > 0 ? std::min(options_.stop_after, max_steps_) : max_steps_;
    const int first = step_ + 1;
    const int traced_step = std::min(step_ + 1, end - 1);   // the second, if there are two: the first warms up
    if (stop_at_signal()) return RunEnd::signal;
    if (step_ == 0 && options_.val_every > 0) validate();
    while (step_ < end) {
        if (stop_at_signal()) return RunEnd::signal;
        if (!options_.trace.empty() && step_ == traced_step) {
            trace_step(parts_.files, options_.trace, parts_.world, [&] { train_step(); });
            parts_.log.line("trace of step %d: %s", step_, options_.trace.c_str());
        } else {
            train_step();
        }
        if (step_ == first) agree_on_algorithms();
        if (due(options_.val_every)) validate();
        if (due(options_.sample_every)) write_sample();
        if (due(options_.checkpoint_every)) save_checkpoint();
    }
    parts_.optimizer.settle_parameters();   // for whoever reads them after the run
    if (step_ < max_steps_) {
        save_checkpoint();
        parts_.log.line("--stop-after %d: stopped after step %d of %d", options_.stop_after, step_, max_steps_);
        return RunEnd::stop_requested;
    }
    parts_.log.line("total average iteration time: %f ms", 1e3 * timing_.mean_s());
    return RunEnd::finished;
}

// True when the run must end here, with all that it has done saved: a rank has received a signal. All ranks learn that
// after the same step.
bool Trainer::stop_at_signal() {
    const int rank_asked = stop_asked();
    if (rank_asked < 0) return false;
    parts_.optimizer.settle_parameters();
    save_checkpoint();
    const std::string what = rank_asked == rank() ? parts_.signals.received() : text("a signal to rank ", rank_asked);
    parts_.log.line("%s received: stopped after step %d of %d%s", what.c_str(), step_, max_steps_,
                    options_.output_dir.empty() ? "; nothing is saved without --output-dir" : "");
    return true;
}

// The rank that has received a signal to stop, the same on all ranks; -1: none.
int Trainer::stop_asked() {
    const std::int32_t own = parts_.signals.received().empty() ? -1 : parts_.world ? parts_.world->rank() : 0;
    if (parts_.world == nullptr || parts_.world->all() == nullptr) return own;
    stop_.upload(std::vector<std::int32_t>{own}, parts_.model.stream());
    parts_.world->all()->all_reduce(stop_.data(), 1, ReduceOp::max, parts_.model.stream());
    const std::int32_t asked = stop_.download(parts_.model.stream())[0];
    parts_.world->synchronised();
    return asked;
}

// After the first step of this process, when all problems have been met: from here on every rank multiplies with rank
// 0's algorithms, which are those that checkpoints hold, and what a checkpoint brought but does not fit is told.
void Trainer::agree_on_algorithms() {
    Matmul& matmul = parts_.model.matmul();
    for (const std::string& why : matmul.refused_algorithms()) {
        parts_.log.warning("a matmul algorithm of the checkpoint does not fit here, another was chosen: %s",
                           why.c_str());
    }
    if (parts_.world == nullptr || parts_.world->ranks() == 1) return;
    const std::string why_not =
        use_matmul_choices(parts_.world->from_first(matmul_choices_text(matmul)), "rank 0's table", matmul);
    if (!why_not.empty())
        throw Error(ErrorKind::usage, text("matmul algorithms: ", why_not), "Use machines of one type.");
}

// ---------------------------------------------------------------------------------------------------------------------
// One step

void Trainer::read_micro_batch(int micro_step) {
    const std::uint64_t B = static_cast<std::uint64_t>(options_.micro_batch);
    const std::uint64_t first = static_cast<std::uint64_t>(micro_step * ranks() + rank()) * B;
    if (!options_.overfit_single_batch) {
        loader_.read(first, B, inputs_, targets_);
    } else {
        const std::size_t T = static_cast<std::size_t>(options_.seq_len);
        for (std::uint64_t b = 0; b < B; b++) {
            parts_.train_tokens.read_window((first + b) % parts_.train_tokens.windows(),
                                            std::span(inputs_).subspan(b * T, T),
                                            std::span(targets_).subspan(b * T, T));
        }
    }
    batch_.upload(inputs_, targets_, parts_.model.stream());
}

void Trainer::train_step() {
    const double start = seconds_now();
    const float token_share = 1.0f / static_cast<float>(options_.tokens_per_step());
    for (int micro_step = 0; micro_step < options_.micro_steps(); micro_step++) {
        read_micro_batch(micro_step);
        parts_.optimizer.forward_backward(batch_.batch(), token_share, micro_step == 0,
                                          micro_step + 1 == options_.micro_steps());
    }
    parts_.optimizer.finish_gradients();
    loader_.advance(static_cast<std::uint64_t>(sequences_));
    step_++;
    if (parts_.world) parts_.world->set_step(step_);

    const float lr = learning_rate(schedule_, step_);
    if (options_.skip_loss_z > 0 || options_.skip_norm_z > 0) {
        // only then the host must know before the update
        if (!is_outlier(parts_.optimizer.result())) parts_.optimizer.update(step_, lr);
    } else {
        parts_.optimizer.update(step_, lr);
        is_outlier(parts_.optimizer.result());
    }
    const StepResult result = parts_.optimizer.result();
    if (parts_.world) parts_.world->synchronised();
    report_step(result, lr, seconds_now() - start);
}

// Takes loss and norm into the windows of past values; true when one is too far above them.
bool Trainer::is_outlier(const StepResult& result) {
    loss_z_ = loss_outliers_.update(result.loss);
    norm_z_ = norm_outliers_.update(result.grad_norm);
    bool outlier = false;
    auto check = [&](const char* what, const char* flag, double z, float limit) {
        if (limit <= 0 || !(z > limit)) return;   // no score yet: NaN
        parts_.log.warning("step %d: the %s's z-score %.2f is above %s %g: update skipped", step_, what, z, flag,
                           static_cast<double>(limit));
        outlier = true;
    };
    check("loss", "--skip-loss-z", loss_z_, options_.skip_loss_z);
    check("gradient norm", "--skip-norm-z", norm_z_, options_.skip_norm_z);
    return outlier;
}

void Trainer::report_step(const StepResult& result, float lr, double seconds) {
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
        parts_.log.warning("step %d: loss %g, gradient norm %g: not finite, update skipped", step_,
                           static_cast<double>(result.loss), static_cast<double>(result.grad_norm));
    }
    if (timing_.steps > 0 || step_ > 1) timing_.total_s += seconds;
    timing_.steps += step_ > 1;

    StepRecord record{};
    record.step = step_;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = lr;
    record.tokens_per_s = static_cast<double>(options_.tokens_per_step()) / seconds;
    if (parts_.peak_flops_per_s > 0) {
        record.mfu = record.tokens_per_s * flops_per_token(parts_.model.config(), options_.seq_len) /
                     (ranks() * parts_.peak_flops_per_s);
    }
    record.step_ms = 1e3 * seconds;
    record.memory_bytes = parts_.arena.high_water();
    parts_.metrics.step(record);

    const double mean = timing_.steps > 0 ? timing_.mean_s() : seconds;
    const int last = options_.stop_after > 0 ? std::min(options_.stop_after, max_steps_) : max_steps_;
    auto z_score = [](double z) { return std::isnan(z) ? std::string() : formatted(" (%+.2fz)", z); };
    parts_.log.line("step %4d/%d | loss %.6f%s | norm %.4f%s | lr %.2e | %.2f ms | %.0f tok/s | %s | ETA %s", step_,
                    max_steps_, static_cast<double>(result.loss), z_score(loss_z_).c_str(),
                    static_cast<double>(result.grad_norm), z_score(norm_z_).c_str(), static_cast<double>(lr),
                    record.step_ms, record.tokens_per_s,
                    record.mfu ? formatted("%.1f%% %s MFU", 100 * *record.mfu, precision_name).c_str() : "MFU unknown",
                    duration(mean * (last - step_)).c_str());
}

// ---------------------------------------------------------------------------------------------------------------------
// Between steps

// The mean loss over the first --val-max-batches sequences, whatever the micro-batch and the number of ranks: what is
// missing from the last micro-batches is padded with positions that have no loss.
float Trainer::validation_loss() {
    const TokenSet& tokens = *parts_.val_tokens;
    std::uint64_t sequences = tokens.windows();
    if (options_.val_max_batches > 0)
        sequences = std::min<std::uint64_t>(sequences, static_cast<std::uint64_t>(options_.val_max_batches));
    const std::uint64_t B = static_cast<std::uint64_t>(options_.micro_batch);
    const std::size_t T = static_cast<std::size_t>(options_.seq_len);
    const float token_share = 1.0f / (static_cast<float>(sequences) * static_cast<float>(T));
    const std::uint64_t at_once = B * static_cast<std::uint64_t>(ranks());
    for (std::uint64_t begin = 0; begin < sequences; begin += at_once) {
        const std::uint64_t first = begin + B * static_cast<std::uint64_t>(rank());
        for (std::uint64_t b = 0; b < B; b++) {
            auto inputs = std::span(inputs_).subspan(b * T, T), targets = std::span(targets_).subspan(b * T, T);
            if (first + b < sequences) {
                tokens.read_window(first + b, inputs, targets);
            } else {
                std::fill(inputs.begin(), inputs.end(), 0);
                std::fill(targets.begin(), targets.end(), -1);
            }
        }
        batch_.upload(inputs_, targets_, parts_.model.stream());
        parts_.model.forward_loss(batch_.batch());
        sum_losses(val_loss_.data(), parts_.model.activations().losses, static_cast<int>(B * T), token_share, begin > 0,
                   parts_.model.stream());
    }
    if (parts_.group) parts_.group->all_reduce(val_loss_.data(), 1, ReduceOp::sum, parts_.model.stream());
    return val_loss_.download(parts_.model.stream())[0];
}

void Trainer::validate() {
    if (parts_.val_tokens == nullptr) return;
    const float loss = validation_loss();
    parts_.metrics.validation(step_, loss);
    parts_.log.line("val loss %f", static_cast<double>(loss));
    if (parts_.evaluation == nullptr || step_ == 0) return;   // before the first step there is nothing to learn from it
    const EvaluationResult result = parts_.evaluation->run();
    parts_.metrics.evaluation(step_, result.accuracy());
    parts_.log.line("HellaSwag: %d/%d = %f", result.right, result.questions, result.accuracy());
}

void Trainer::save_checkpoint() {
    if (options_.output_dir.empty() || saved_step_ == step_) return;
    RunState state;
    state.step = step_;
    state.seed = options_.seed;
    state.loader = loader_.state();
    state.windows = parts_.train_tokens.windows();
    state.loss_outliers = loss_outliers_.state();
    state.norm_outliers = norm_outliers_.state();
    state.attention = parts_.model.attention();
    parts_.metrics.sync();
    save_training_state(parts_.files, options_.output_dir, state, parts_.model, parts_.optimizer, parts_.tokenizer_file,
                        WholeTensors(parts_.group, parts_.arena, parts_.model.stream()));
    saved_step_ = step_;
    if (rank() > 0) return;
    prune_checkpoints(parts_.files, options_.output_dir, options_.keep_checkpoints, options_.major_checkpoint_every);
    parts_.log.line("checkpoint %s/%s", options_.output_dir.c_str(), checkpoint_name(step_).c_str());
}

void Trainer::write_sample() {
    if (parts_.sampler == nullptr) return;
    parts_.log.block("generating:\n---\n" + printable(parts_.sampler->sample(step_)) + "\n---\n");
}
