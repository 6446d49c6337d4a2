// The trainer's work between steps: validation, evaluations, samples, checkpoints.
#include <cmath>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/base/printable.h"
#include "llmc/run/trainer.h"

bool Trainer::validate() {
    const std::optional<float> loss = validation_->loss();
    if (!loss) return false;
    parts_.metrics.validation(step_, *loss, validation_->by_source());
    std::string by_source;
    for (const auto& [name, of_source] : validation_->by_source()) {
        by_source += formatted(" | %s %f", name.c_str(), static_cast<double>(of_source));
    }
    parts_.log.line("val loss %f%s", static_cast<double>(*loss), by_source.c_str());
    if (step_ > 0 && std::isfinite(*loss) && (!best_val_loss_ || *loss < *best_val_loss_)) {
        best_val_loss_ = *loss;
        if (options_.keep_best) save_best();
    }
    return true;
}

bool Trainer::evaluate() {
    for (const std::unique_ptr<Evaluation>& evaluation : *parts_.evaluations) {
        const std::optional<EvaluationResult> result = evaluation->run(agreement_);
        if (!result) return false;
        parts_.metrics.evaluation(step_, evaluation->name(), result->accuracy(), result->perplexity);
        parts_.log.line("%s", evaluation->in_words(*result).c_str());
    }
    return true;
}

bool Trainer::write_sample() {
    for (int number = 0; number < options_.sample_count; number++) {
        const std::string which = options_.sample_count > 1 ? text(" ", number + 1, " of ", options_.sample_count) : "";
        const std::string sample = parts_.sampler->sample(step_, number);
        parts_.log.block(text("generating", which, ":\n---\n", sample, "\n---\n"));
        parts_.metrics.tell("sample", printable(sample));
    }
    return true;
}

// Saves the state as the best folder's only checkpoint. The old one is removed last, so that the folder always has one.
void Trainer::save_best() {
    const std::string folder = options_.output_dir + "/" + kBestFolder;
    end_save();
    begin_save(folder, after(AfterStep::validation), [this, folder, best = step_] {
        for (int step : list_checkpoints(parts_.files, folder)) {
            if (step != best) remove_checkpoint(parts_.files, folder, step);
        }
    });
}

bool Trainer::save_checkpoint() {
    if (options_.output_dir.empty()) return true;
    end_save();
    if (saved_step_ == step_) return true;
    const AfterStep next = next_ < AfterStep::checkpoint ? next_ : AfterStep::next_step;
    if (best_step_ == step_ && link_checkpoint(next)) return true;
    begin_save(options_.output_dir, next, [this] { remove_older_checkpoints(); });
    return true;
}

void Trainer::remove_older_checkpoints() {
    prune_checkpoints(parts_.files, options_.output_dir, options_.keep_checkpoints, options_.major_checkpoint_every);
}

// Links the best state's files as this step's checkpoint; the first rank does it. Returns false if that fails.
bool Trainer::link_checkpoint(AfterStep next) {
    agree_on_algorithms();
    const std::string name = checkpoint_name(step_);
    std::string failure;
    if (agreement_.rank() == 0) {
        const Communicator::LocalWork work(parts_.groups.all, "writes a file");
        try {
            parts_.metrics.sync();
            link_training_state(parts_.files, options_.output_dir, state_now(next),
                                options_.output_dir + "/" + kBestFolder + "/" + name, {"", matmul_choices_});
        } catch (const std::exception& error) {
            failure = error.what();
        }
        try {
            if (failure.empty()) remove_older_checkpoints();
        } catch (const std::exception& error) {
            parts_.log.warning("older checkpoints could not be removed: %s", error.what());
        }
    }
    failure = agreement_.gather(failure)[0];
    if (!failure.empty()) {
        parts_.log.line("the best state is written again: %s", failure.c_str());
        return false;
    }
    saved_step_ = step_;
    save_failure_ = nullptr;
    parts_.log.line("checkpoint %s/%s", options_.output_dir.c_str(), name.c_str());
    return true;
}

RunState Trainer::state_now(AfterStep next) const {
    RunState state;
    state.step = step_;
    state.seed = options_.seed;
    state.loader = loader_.state();
    state.windows = parts_.train_tokens.windows();
    state.loss_outliers = loss_outliers_.state();
    state.norm_outliers = norm_outliers_.state();
    state.attention = parts_.step.stage().attention().kind();
    state.next = next;
    state.bad_steps = bad_steps_;
    state.best_val_loss = best_val_loss_;
    state.optimizer = options_.optimizer;
    state.moments_began = parts_.step.optimizer().began();
    state.router_bias = parts_.step.stage().router_bias().values();
    return state;
}

void Trainer::begin_save(const std::string& folder, AfterStep next, std::function<void()> remove_older) {
    if (options_.check_replicas > 0 && step_ % options_.check_replicas != 0) check_replicas();
    agree_on_algorithms();   // on the algorithms of problems that are new since the last time
    if (!host_tensors_) host_tensors_.emplace(tensors_of(parts_.step), gatherer_);
    parts_.metrics.require_folder();
    save_folder_ = folder;
    save_.emplace(parts_.files, folder, step_,
                  CheckpointRanks{agreement_.rank(), agreement_.ranks(),
                                  [this](const std::string& own) { return agreement_.gather(own); },
                                  [this] { return gatherer_.local_work(); }});
    const CheckpointExtras extras{parts_.tokenizer_file, matmul_choices_, [this] { parts_.metrics.sync(); },
                                  std::move(remove_older)};
    start_save(*save_, state_now(next), tensors_of(parts_.step), *host_tensors_, extras, gatherer_);
}

void Trainer::end_save() {
    if (!save_) return;
    const std::string name = save_folder_ + "/" + checkpoint_name(save_->step());
    save_failure_ = nullptr;
    try {
        save_->finish();
        (save_folder_ == options_.output_dir ? saved_step_ : best_step_) = save_->step();
        parts_.log.line("checkpoint %s", name.c_str());
        if (const std::string& why = save_->afterwards_failure(); !why.empty()) {
            parts_.log.warning("older checkpoints could not be removed: %s", why.c_str());
        }
    } catch (const std::exception& error) {
        save_failure_ = std::current_exception();
        parts_.log.warning("%s was not written: %s", name.c_str(), error.what());
    }
    save_.reset();
}

void Trainer::settle_saves() {
    end_save();
    if (save_failure_) std::rethrow_exception(save_failure_);
}
