// train_gpt: pretrains GPT models. `train_gpt --help` lists every option, the README shows how to begin.
//
// An index of the program: options -> processes and devices -> data and model -> training loop -> exit code. The parts
// are in
//   llmc/cli/command_line.h  the command line         llmc/process/world.h  this process among the others
//   llmc/run/run_inputs.h    the inputs of a run      llmc/data/loader.h    token files and the sample order
//   llmc/run/loop/trainer.h       the training loop        llmc/run/step/step.h       one step of it
//   llmc/model/stage/stage.h       forward and backward     llmc/run/training_state.h, llmc/checkpoint/  resuming
// Exit codes are those of ErrorKind (llmc/base/error.h), and 0.

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

#include "llmc/base/exit_code.h"
#include "llmc/base/outlet.h"
#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/cli/check_run.h"
#include "llmc/cli/command_line.h"
#include "llmc/cli/evaluate_model.h"
#include "llmc/cli/export_model.h"
#include "llmc/cli/generate.h"
#include "llmc/cli/show_data.h"
#include "llmc/io/standard_descriptors.h"
#include "llmc/kernels/self_check.h"
#include "llmc/plan/auto_layout.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/plan.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/report/report_writer.h"
#include "llmc/run/choices/attention_of_run.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/metrics/metrics_server.h"
#include "llmc/run/metrics/told_run.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/options/settings.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_parts.h"
#include "llmc/run/stopping/stop_signals.h"

namespace {

std::string name_of_device() { return device_properties().name; }

// Bytes of the device in use, by any process.
std::size_t device_bytes_taken() {
    std::size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

// Records the run's options and this start in the output folder, and prints the options that differ from the last
// start. `hosts`: names by rank.
void record_run(const CommandLine& asked, const RunInputs& inputs, int after_step,
                const std::vector<std::string>& hosts, Communicator* all, const Log& log) {
    const std::string& folder = asked.options.output_dir;
    if ((all != nullptr && all->rank() > 0) || folder.empty()) return;
    RunRecord record = asked.recorded.value_or(RunRecord{});
    const std::vector<ChangedOption> changed = changed_options(record.options, asked.texts);
    for (const ChangedOption& option : changed) {
        log.line("--%s %s: the run had %s until now", option.name.c_str(), option.now.c_str(), option.recorded.c_str());
    }
    record.options = asked.texts;
    record.data = inputs.data;
    record.starts.push_back(describe_start({after_step, precision_name, name_of_device(), hosts, changed}));
    const Communicator::LocalWork work(all, "writes a file");   // the others go on and wait for this rank later
    write_run_record(real_files(), folder, record);
}

// Warns of records that a resumed run lacks, or has dropped.
void warn_of_records(const Metrics& metrics, const std::string& folder, const std::string& checkpoint, int after_step,
                     const Log& log) {
    for (const std::string& warning : metrics.warnings()) log.warning("%s", warning.c_str());
    if (folder.empty() || !checkpoint.starts_with(folder + "/") || metrics.recorded() >= after_step) return;
    log.warning("%s/metrics.jsonl: no records of steps %d to %d, which the checkpoint comes after", folder.c_str(),
                metrics.recorded() + 1, after_step);
}

// Prints the tables and warnings that come before the first step. `texts`: the run's options. `about_gradients`: what
// is to be said of how they travel, or nothing. `mebibytes`: what the device reports as taken by this run. Collective.
void print_run(const TrainerParts& parts, const std::vector<OptionText>& texts, const RunFacts& facts,
               const std::string& about_gradients, double mebibytes) {
    const Log& log = parts.log;
    const Options& options = parts.options;
    log.block(settings_table(options, texts, facts));
    if (stand_in()) log.line("threads: %s", stand_in()->threads().c_str());
    log.line("device memory:");
    log.block(parts.arena.table());
    if (parts.groups.zero) log.line("%s", parts.step.memory_by_formula().c_str());
    if (!about_gradients.empty()) log.line("%s", about_gradients.c_str());
    Stage& stage = parts.step.stage();
    Agreement& agreement = parts.agreement;
    if (options.pp > 1) log.block(pipeline_memory(stage, parts.arena, options, parts.world->mesh(), agreement));
    log.line("  the device reports %.2f MiB", mebibytes);
    const std::string about_ring = warning_about_ring(stage, *parts.world);
    if (!about_ring.empty()) log.warning("%s", about_ring.c_str());
    for (const std::string& warning : option_warnings(options, facts.model)) log.warning("%s", warning.c_str());
    for (const std::string& warning : layout_warnings(options, agreement.gather(own_host_identity()))) {
        log.warning("%s", warning.c_str());
    }
}

int train(const CommandLine& asked, World& world, const StopSignals& signals) {
    Options options = asked.options;
    signals.leave_if_received();
    fit_to_ranks(options, world.mesh().dp);
    const Log log(world.is_first());
    std::optional<MetricsServer> server;
    if (world.is_first() && options.metrics_port > 0) {
        server.emplace(options.metrics_host, options.metrics_port);
        log.line("metrics: %s", server->address().c_str());
    }
    open_device(world.place().local_rank);
    RunInputs inputs = find_inputs(options, world, signals, log);

    // device: weights and everything that computes
    OwnedStream stream;
    check_hardware(stream.get());
    if (!options.recompute) options.recompute = recompute_that_fits(options, inputs.config, world);
    options.left_sms = multiprocessors_left(options, inputs.config, world);
    const MemoryNeed need = memory_need(options, inputs.config, world);
    const auto devices = world.gather_text(need.device), bytes = world.gather_text(to_bytes(need.bytes));
    log.line("memory: %s", memory_that_suffices(need, devices, bytes, log).c_str());
    const TrainingGroups groups = groups_of_run(options, inputs.config, world);
    const std::size_t taken_before = device_bytes_taken();   // used by others, and by NCCL for its communicators
    Arena arena;
    RunParts parts(options, inputs.config, world, arena, stream.get());
    Stage& stage = parts.stage;
    start_weights(stage.parameters(), stage.router_bias(), inputs.weights.get(), options.seed, stream.get());
    signals.leave_if_received();
    Step& step = parts.make_step(options, arena);
    const auto sampler = make_sampler(options, step, arena, inputs.tokenizer);
    const auto evaluations =
        make_evaluations(read_asked_questions(options, stage.config().vocab_size, inputs.tokenizer_folder(), log),
                         options, step, arena, log);
    const PeakFlops peak = peak_flops(name_of_device(), options.tf32, stage.matmul(), stream.get());

    const std::string about_gradients = step.sync().times_in_words();   // timed before there is a state
    if (!about_gradients.empty()) world.synchronised();

    // resume: state of the last checkpoint, and the run's records
    const std::optional<RunState> state = resume(inputs, asked.recorded, options, step, world, log);
    const std::string about_attention =
        settle_attention(stage, options.attention, state ? state->attention : AttentionKind::auto_, world);
    if (!about_attention.empty()) log.warning("%s", about_attention.c_str());
    signals.leave_if_received();
    Agreement agreement(arena, groups.everyone(), &world, signals,
                        stream.get());   // ranks may arrive at different times
    const std::vector<std::string> hosts = agreement.gather(own_host_name());
    record_run(asked, inputs, state ? state->step : 0, hosts, groups.everyone(), log);
    Metrics metrics(real_files(), world.is_first() ? options.output_dir : "", state ? state->step : 0,
                    state ? state->next : StepPhase::next_step, options.tensorboard);
    if (server) metrics.show_to(*server);
    metrics.tell("start", told_start(arena, inputs.max_steps));
    const WarningListener listener([&metrics](const std::string& words) { metrics.tell("warning", words); });
    warn_of_records(metrics, options.output_dir, inputs.checkpoint, state ? state->step : 0, log);
    if (const std::string folder = real_files().unsynced_folder(); !folder.empty()) {
        log.warning("%s: the file system cannot sync folders, so a loss of power may take the newest checkpoint's name",
                    folder.c_str());
    }
    const ReportWriter report(real_files(), world.is_first() ? options.output_dir : "", pictures_of_run(options));
    const TrainerParts trainer_parts{
        options, log,       arena,         step,         inputs.train_tokens,   inputs.validation(), real_files(),
        metrics, agreement, sampler.get(), &evaluations, inputs.tokenizer_file, inputs.max_steps,    peak.per_second,
        groups,  &world,    hosts};
    Trainer trainer(trainer_parts);
    if (state) trainer.restore(*state);

    auto mebibytes_taken = [&] { return static_cast<double>(device_bytes_taken() - taken_before) / (1 << 20); };
    const RunFacts facts{name_of_device(),         precision_name,      peak,
                         stage.attention().kind(), inputs.origin(),     inputs.config,
                         inputs.train_tokens,      inputs.validation(), inputs.max_steps};
    print_run(trainer_parts, asked.texts, facts, about_gradients, mebibytes_taken());
    const RunEnd end = tell_end(
        metrics, [&trainer] { return trainer.run(); }, words_of_end);
    log.line("device memory at the end: the table %.2f MiB, the device reports %.2f MiB",
             static_cast<double>(arena.bytes()) / (1 << 20), mebibytes_taken());
    if (end == RunEnd::bad_steps) return static_cast<int>(ErrorKind::bad_data);
    if (!options.export_llmc.empty()) {
        save_llmc_model(real_files(), options.export_llmc, stage, trainer.gatherer());
    }
    return end == RunEnd::signal ? static_cast<int>(ErrorKind::resumable) : 0;
}

// Returns "rank R: " for messages if there are several processes. Errors that all ranks find before they have met are
// printed by one rank only (is_repeated).
std::string whose(const StartupOptions& startup) {
    const int ranks = startup.ranks > 0 ? startup.ranks : read_launch_environment().ranks;
    return ranks > 1 ? text("rank ", own_rank(startup), ": ") : "";
}

// Returns true for a usage error on a rank that is not the first of its machine: the first one prints it.
bool is_repeated(const std::exception& error) {
    try {
        return exit_code_of(error) == static_cast<int>(ErrorKind::usage) && read_launch_environment().local_rank > 0;
    } catch (const Error&) {   // the environment itself is wrong
        return false;
    }
}

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    std::string who;
    try {
        // must come before any library starts a thread
        StopSignals* const signals = asks_for_steps(argc, argv) ? &take_stop_signals() : nullptr;
        const CommandLine command_line = parse_command_line({argv + 1, argv + argc});
        const Options& options = command_line.options;
        if (stand_in()) stand_in()->threads();   // refuses a TRAIN_GPT_THREADS that is none, before other threads ask
        if (!command_line.print_and_exit.empty()) {
            if (own_rank(options.startup) == 0) std::fputs(command_line.print_and_exit.c_str(), stdout);
            return 0;
        }
        const Log early(own_rank(options.startup) == 0);
        for (const std::string& warning : command_line.warnings) early.warning("%s", warning.c_str());
        if (!command_line.chosen.empty() && command_line.verb != Verb::plan) {
            early.line("%s", command_line.chosen.c_str());
        }
        if (options.print_memory) {
            if (own_rank(options.startup) == 0) std::fputs(memory_plan(options).c_str(), stdout);
            return 0;
        }
        if (command_line.verb == Verb::train) StopSignals::time_limit(options.time_limit);
        if (command_line.verb == Verb::generate) return generate(options);
        if (command_line.verb == Verb::export_model) return export_model(real_files(), options);
        if (command_line.verb == Verb::data) return show_data(command_line);
        if (command_line.verb == Verb::plan) return plan_run(options);
        who = whose(options.startup);
        World world(world_options(options));
        signals->remember_from_now(world.is_first());
        return world.guarded([&] {
            world.require_same("the command line", command_line.shared);
            if (command_line.verb == Verb::check) return check_run(command_line, world, *signals);
            if (command_line.verb == Verb::evaluate) return evaluate_model(options, world, *signals);
            return train(command_line, world, *signals);
        });
    } catch (const std::exception& error) {
        std::fflush(stdout);
        if (who.empty() && is_repeated(error)) return exit_code_of(error);
        const char* const kind = exit_code_of(error) == static_cast<int>(ErrorKind::resumable) ? "" : "error: ";
        put_text(stderr, text("train_gpt: ", who, kind, words_of(error), "\n"));
        return exit_code_of(error);
    }
}
