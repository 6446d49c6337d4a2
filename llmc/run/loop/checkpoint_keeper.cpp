#include "llmc/run/loop/checkpoint_keeper.h"

#include <algorithm>
#include <utility>

#include "llmc/run/stopping/health.h"

CheckpointKeeper::CheckpointKeeper(const TrainerParts& parts, SharedMatmulChoices& matmul_choices)
    : parts_(parts),
      folder_(parts.options.output_dir),
      agreement_(parts.agreement),
      matmul_choices_(matmul_choices),
      // every rank that writes a unit gets tensors
      gatherer_(parts.step.stage().storage(), parts.groups.stage,
                parts.groups.stage && (parts.groups.stage->rank() < parts.step.stage().table().units() ||
                                       std::ranges::any_of(parts.step.optimizer().states(), &OptimizerState::of_sum)),
                parts.arena, parts.step.stage().stream(), 1 << 20, parts.groups.all) {}

void CheckpointKeeper::prepare() {
    if (!folder_.empty()) host_tensors_.emplace(tensors_of(parts_.step), gatherer_);
}

void CheckpointKeeper::save(const RunState& state) {
    if (folder_.empty()) return;
    finish_save();
    if (saved_step_ == state.step || (best_step_ == state.step && link_best(state))) return;
    begin_save(folder_, state, [this, step = state.step] { remove_older(step); });
}

// Removes the old best state last, so that the folder always has one.
void CheckpointKeeper::save_best(const RunState& state) {
    const std::string folder = folder_ + "/" + kBestFolder;
    finish_save();
    begin_save(folder, state, [this, folder, best = state.step] {
        for (int step : list_checkpoints(parts_.files, folder)) {
            if (step != best) remove_checkpoint(parts_.files, folder, step);
        }
        remove_unfinished_checkpoints(parts_.files, folder);
    });
}

// Removes what a save that failed has left, too, where the disk took no change at all.
void CheckpointKeeper::remove_older(int saved) {
    remove_unfinished_checkpoints(parts_.files, folder_);
    prune_checkpoints(parts_.files, folder_, saved,
                      {parts_.options.keep_checkpoints, parts_.options.major_checkpoint_every, origin_});
}

// Links the best state's files as this step's checkpoint; the first rank does it.
bool CheckpointKeeper::link_best(const RunState& state) {
    const std::string choices = matmul_choices_.agree();
    const std::string name = checkpoint_name(state.step);
    std::string failure;
    if (agreement_.rank() == 0) {
        const Communicator::LocalWork work(parts_.groups.everyone(), "writes a file");
        try {
            parts_.metrics.sync();
            link_training_state(parts_.files, folder_, state, folder_ + "/" + kBestFolder + "/" + name, {"", choices});
        } catch (const std::exception& error) {
            failure = error.what();
        }
        try {
            if (failure.empty()) remove_older(state.step);
        } catch (const std::exception& error) {
            parts_.log.warning("older checkpoints could not be removed: %s", error.what());
        }
    }
    failure = agreement_.gather(failure)[0];
    if (!failure.empty()) {
        parts_.log.line("the best state is written again: %s", failure.c_str());
        return false;
    }
    saved_step_ = state.step;
    save_failure_ = nullptr;
    parts_.log.line("checkpoint %s/%s", folder_.c_str(), name.c_str());
    return true;
}

void CheckpointKeeper::begin_save(const std::string& folder, const RunState& state, std::function<void()> afterwards) {
    const TrainedTensors tensors = tensors_of(parts_.step);
    const int checks = parts_.options.check_replicas;
    if (checks > 0 && state.step % checks != 0)
        check_replicas(state.step, tensors, parts_.step.stage().stream(), agreement_);
    const std::string choices = matmul_choices_.agree();   // on problems that are new since the last time
    parts_.metrics.require_folder();
    save_folder_ = folder;
    save_.emplace(parts_.files, folder, state.step,
                  CheckpointRanks{agreement_.rank(), agreement_.ranks(),
                                  [this](const std::string& own) { return agreement_.gather(own); },
                                  [this]() -> std::shared_ptr<void> {
                                      if (parts_.groups.outer == nullptr) return gatherer_.local_work();
                                      return std::make_shared<Communicator::LocalWork>(parts_.groups.world,
                                                                                       "writes a file");
                                  }});
    const CheckpointExtras extras{parts_.tokenizer_file, choices, [this] { parts_.metrics.sync(); },
                                  std::move(afterwards)};
    start_save(*save_, state, tensors, *host_tensors_, extras, gatherer_);
}

void CheckpointKeeper::advance() {
    if (!save_ || agreement_.stop().saved != agreement_.ranks()) return;   // all ranks know this sum since the step
    save_->advance();
    if (save_->is_over()) finish_save();
}

void CheckpointKeeper::finish_save() {
    if (!save_) return;
    const std::string name = save_folder_ + "/" + checkpoint_name(save_->step());
    save_failure_ = nullptr;
    try {
        save_->finish();
        (save_folder_ == folder_ ? saved_step_ : best_step_) = save_->step();
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

void CheckpointKeeper::settle() {
    finish_save();
    if (save_failure_) std::rethrow_exception(save_failure_);
}

std::optional<FoundCheckpoint> CheckpointKeeper::newest() {
    finish_save();
    std::vector<PassedOver> passed_over;
    std::optional<Communicator::LocalWork> work;   // each rank hashes its share in its own time
    const auto gather = [&](const std::string& own) {
        work.reset();
        std::vector<std::string> by_rank = agreement_.gather(own);
        work.emplace(parts_.groups.everyone(), "reads a checkpoint");
        return by_rank;
    };
    const auto found =
        newest_checkpoint(parts_.files, folder_, passed_over, {agreement_.rank(), agreement_.ranks(), gather});
    if (agreement_.rank() == 0 && found) set_aside(parts_.files, folder_, passed_over, parts_.log);
    return found;
}

RunState CheckpointKeeper::load(const FoundCheckpoint& checkpoint) {
    parts_.step.wait_for_all_gather();   // it reads what this overwrites
    const Communicator::LocalWork work(parts_.groups.everyone(),
                                       "reads a checkpoint");   // each rank reads in its own time
    return load_training_state(parts_.files, checkpoint.path, tensors_of(parts_.step), parts_.step.stage().stream(),
                               parts_.options.optimizer);
}
