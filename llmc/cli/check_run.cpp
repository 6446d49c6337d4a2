#include "llmc/cli/check_run.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "llmc/base/exit_code.h"
#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/self_check.h"
#include "llmc/plan/auto_layout.h"
#include "llmc/plan/machine/measure_machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/process/link_speed.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/choices/attention_of_run.h"
#include "llmc/run/loop/step_trace.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/metrics/metrics_server.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_parts.h"

namespace {

constexpr double kSecondsOfSteps = 5;   // length of the steps to time

// Prints one line per check and keeps the exit code that follows from them, which is the same on all ranks.
class Report {
public:
    Report(Agreement& agreement, const Log& log) : agreement_(agreement), log_(log) {}

    // Runs work() on this rank alone; prints what rank 0's returned, or the first failure. Collective. False where a
    // rank has thrown.
    bool check(const char* name, const std::function<std::string()>& work) {
        int own_code = 0;
        std::string own_words;
        try {
            own_words = work();
        } catch (const std::exception& error) {
            own_code = exit_code_of(error), own_words = words_of(error);
        }
        const std::vector<std::string> codes = agreement_.gather(to_bytes(own_code)),
                                       words = agreement_.gather(own_words);
        for (std::size_t rank = 0; rank < codes.size(); rank++) {
            const auto code = value_of<int>(codes[rank]);
            if (code == static_cast<int>(ErrorKind::resumable)) throw Error(ErrorKind::resumable, words[rank]);
            if (code == 0) continue;
            say(name, "WRONG", codes.size() > 1 ? text("rank ", rank, ": ", words[rank]) : words[rank]);
            if (code_ == 0) code_ = code;
            wrong_++;
            return false;
        }
        say(name, "OK", words[0]);
        return true;
    }
    // Runs work() in which ranks communicate, and prints what it returned. If it throws, this program ends, as a run
    // would.
    void together(const char* name, const std::function<std::string()>& work) {
        try {
            say(name, "OK", work());
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::resumable) say(name, "WRONG", words_of(error));
            throw;
        }
    }
    void say(const char* name, const char* verdict, const std::string& words) const {
        log_.block(formatted("%-10s  %-5s  %s", name, verdict, words.c_str()));
    }
    int wrong() const { return wrong_; }
    int code() const { return code_; }

private:
    Agreement& agreement_;
    const Log& log_;
    int wrong_ = 0, code_ = 0;
};

// Runs the checks in order, and holds what they have found so far.
class RunCheck {
public:
    RunCheck(const CommandLine& requested, World& world, const StopSignals& signals, const Log& log)
        : requested_(requested),
          options_(requested.options),
          world_(world),
          signals_(signals),
          log_(log),
          agreement_(own_memory_, world.all(), &world, signals, stream_.get()),
          report_(agreement_, log),
          max_steps_(requested.options.max_steps) {}

    int run() {
        report_.together("model", [&] { return find_model_and_checkpoint(); });
        bool ready = report_.check("tokens", [&] { return check_tokens(); });
        max_steps_ = value_of<int>(world_.from_first(to_bytes(max_steps_)));   // only rank 0 has read every id
        ready = report_.check("shards", [&] { return check_shards(); }) && ready;
        if (!options_.output_dir.empty() && max_steps_ > 0) report_.check("disk", [&] { return check_disk(); });
        if (!options_.export_llmc.empty() || !options_.trace.empty())
            report_.check("files", [&] { return check_files(); });
        if (options_.metrics_port > 0) report_.check("metrics", [&] { return check_metrics_port(); });
        ready = check_memory() && ready;
        for (const std::string& warning : layout_warnings(options_, agreement_.gather(own_host_identity()))) {
            log_.warning("%s", warning.c_str());
        }
        if (stand_in()) report_.say("threads", "OK", stand_in()->threads());
        check_kernels();
        if (ready) {
            report_.together("steps", [&] { return time_steps(); });
        } else {
            report_.say("steps", "-", "not tried");
        }
        // last, because libraries keep memory for every pair that has talked
        std::optional<LinkSpeeds> links;
        if (world_.ranks() > 1) report_.together("links", [&] { return check_links(links.emplace()); });
        if (!options_.write_machine.empty()) {
            report_.together("machine", [&] { return write_machine(links ? &*links : nullptr); });
        }
        if (report_.wrong() == 0) log_.line("the run can begin");
        if (report_.wrong() > 0) log_.line("%d of these would end the run", report_.wrong());
        return report_.code();
    }

private:
    std::string find_model_and_checkpoint();
    std::string check_tokens();
    std::string check_shards();
    std::string check_disk() const;
    std::string check_metrics_port() const;
    std::string check_files() const;
    bool check_memory();
    void check_kernels();
    std::string check_links(LinkSpeeds& speeds);
    std::string write_machine(const LinkSpeeds* links);
    std::string time_steps();
    double time_validation(Step& step, const TokenSet& tokens);
    int last_step() const { return options_.stop_after > 0 ? std::min(options_.stop_after, max_steps_) : max_steps_; }

    const CommandLine& requested_;
    Options options_;
    World& world_;
    const StopSignals& signals_;
    const Log& log_;
    OwnedStream stream_;
    Arena own_memory_;
    Agreement agreement_;
    Report report_;

    std::unique_ptr<FolderLock> lock_;
    RunModel model_;
    std::string checkpoint_;
    std::optional<TokenSet> train_tokens_, val_tokens_;
    int max_steps_, after_step_ = 0;   // steps of the run (below 1: not known yet), step of the checkpoint
    std::vector<RecordedData> data_;
};

std::string RunCheck::find_model_and_checkpoint() {
    check_names(options_);
    const std::string& folder = options_.output_dir;
    if (!folder.empty()) {
        if (world_.is_first() && real_files().exists(folder + "/lock")) lock_ = std::make_unique<FolderLock>(folder);
        checkpoint_ = world_.from_first(find_checkpoint(options_, world_, log_, false));
        if (!checkpoint_.empty()) after_step_ = std::stoi(checkpoint_.substr(checkpoint_.rfind('_') + 1));
    }
    model_ = find_model(options_, checkpoint_, world_, log_);
    if (!options_.recompute) options_.recompute = recompute_that_fits(options_, model_.config, world_);
    options_.left_sms = multiprocessors_left(options_, model_.config, world_);
    return describe(model_.config);
}

// Checks every token id; a run checks those of large files only as it reads them. Rank 0 checks for all ranks.
std::string RunCheck::check_tokens() {
    const std::uint64_t all_bytes = world_.is_first() ? UINT64_MAX : 0;
    std::string words;
    for (const bool trains : {true, false}) {
        signals_.leave_if_received();
        if (!trains && (options_.val_every == 0 || options_.overfit_single_batch)) break;
        const bool of_training = trains && !options_.overfit_single_batch;
        const char* const flag = of_training ? "--train-data" : "--val-data";
        std::optional<TokenSet>& tokens = trains ? train_tokens_ : val_tokens_;
        tokens.emplace(real_files(), flag, of_training ? options_.train_data : options_.val_data, options_.seq_len,
                       model_.config.vocab_size, all_bytes);
        apply_tokenizer(*tokens, options_, model_.tokenizer);
        words += text(words.empty() ? "" : ", ", tokens->tokens(), " in ", tokens->shards(), " file(s) of ", flag);
    }
    max_steps_ = steps_of_run(options_, *train_tokens_);
    return text(words, "; all below ", model_.config.vocab_size);
}

std::string RunCheck::check_shards() {
    check_data(options_, model_.config, checkpoint_, data_of_run(options_), UINT64_MAX);
    std::string without;
    for (const auto& [flag, pattern] : data_of_run(options_)) {
        data_.push_back(describe_data(real_files(), flag, pattern));
        if (data_.back().manifests.empty()) without += text(without.empty() ? "" : " and ", flag);
    }
    return without.empty() ? "they hold what their manifests say"
                           : text("but there is no manifest.json to compare with: ", without);
}

std::string RunCheck::check_disk() const {
    if (!world_.is_first()) return "";
    const std::string& folder = options_.output_dir;
    DiskRoom room = disk_room(folder);
    std::vector<int> saved = list_checkpoints(real_files(), folder);
    std::size_t best = list_checkpoints(real_files(), folder + "/" + kBestFolder).size();
    if (options_.overwrite) {
        for (int step : saved) {
            std::error_code not_a_folder;
            for (const auto& file :
                 std::filesystem::directory_iterator(folder + "/" + checkpoint_name(step), not_a_folder)) {
                room.free_bytes += file.file_size();
            }
        }
        saved.clear();
        best = 0;
    }
    std::erase_if(saved, [this](int step) { return step > after_step_; });   // damaged: set aside when the run resumes
    std::uint64_t more = checkpoints_to_come(saved, last_step(), options_.checkpoint_every,
                                             {options_.keep_checkpoints, options_.major_checkpoint_every, after_step_});
    if (options_.keep_best) more += 2 - std::min<std::size_t>(best, 1);   // the next one is written beside the last
    const int replicas = options_.has_replicas() ? replica_of(world_.mesh(), world_.at()).replicas : 1;
    const double each = static_cast<double>(checkpoint_tensor_bytes(ParamTable(model_.config),
                                                                    optimizer_states(options_, world_.mesh()), replicas,
                                                                    compressed_sums(world_.mesh()))),
                 bytes = each * static_cast<double>(more);
    const std::string words = text("at most ", more, " more checkpoint(s) of ", size_text(each), " in ", room.at,
                                   ", which has ", size_text(static_cast<double>(room.free_bytes)), " free");
    if (bytes <= static_cast<double>(room.free_bytes)) return words;
    throw Error(ErrorKind::io, text(folder, ": ", words, "; ", size_text(bytes), " would be needed"),
                "Make room, give another --output-dir, raise --checkpoint-every or lower --keep-checkpoints.");
}

std::string RunCheck::check_files() const {
    if (world_.is_first()) try_outputs(options_);
    check_can_trace(options_.trace);
    const char* const and_ = options_.export_llmc.empty() || options_.trace.empty() ? "" : " and ";
    return text(options_.export_llmc, and_, options_.trace, " can be written");
}

// Takes the port for a moment, as the run does.
std::string RunCheck::check_metrics_port() const {
    if (!world_.is_first()) return "";
    return MetricsServer(options_.metrics_host, options_.metrics_port).address();
}

// Compares the memory that the run would allocate with the device's free memory, as the run does at its start.
bool RunCheck::check_memory() {
    std::exception_ptr failure;
    MemoryNeed need;
    try {
        need = memory_need(options_, model_.config, world_);
    } catch (...) {
        failure = std::current_exception();
    }
    const std::vector<std::string> devices = agreement_.gather(need.device),
                                   bytes = agreement_.gather(to_bytes(need.bytes));
    return report_.check("memory", [&] {
        if (failure) std::rethrow_exception(failure);
        return memory_that_suffices(need, devices, bytes, log_);
    });
}

void RunCheck::check_kernels() {
    report_.check("kernels", [&]() -> std::string {
        if (stand_in()) return "instructions are the stand-in's";
        const std::vector<std::string> wrong = self_check(stream_.get());
        if (wrong.empty()) return "they compute what plain ones do";
        use_tensor_cores(false);
        Log().warning("own attention and experts would run on fp32 multiply-adds, slowly: %s", wrong.front().c_str());
        return "but for what is said above";
    });
}

std::string RunCheck::write_machine(const LinkSpeeds* links) {
    MeasuredLoad load = measured_load(model_.config, options_.micro_batch, options_.seq_len);
    load.kind = options_.attention;
    load.matmul = matmul_options(options_);
    const Machine machine = measure_machine(world_, load, links, options_.comm_sms, stream_.get());
    const std::string& path = options_.write_machine;
    if (world_.is_first()) write_whole(real_files(), path, to_text(to_json(machine), 1) + "\n");
    return formatted("matmuls at %.4g GFLOP/s, copies at %.4g GB/s, in ", 1e-9 * machine.best_matmul(),
                     1e-9 * machine.copy_bytes_per_second) +
           path;
}

std::string RunCheck::check_links(LinkSpeeds& speeds) {
    speeds = measure_links(world_, own_memory_, stream_.get());
    const LinkSpeed& slowest = speeds.pairs.front();
    return text(speeds.pairs.size(), " pair(s); the slowest is ", name_of(slowest),
                formatted(", %.3f GB/s\n", 1e-9 * slowest.bytes_per_second), link_table(speeds));
}

// Times a few steps of the run, and a part of a validation. Their results are discarded.
std::string RunCheck::time_steps() {
    Options quiet = options_;
    quiet.output_dir.clear();
    quiet.trace.clear();
    quiet.val_every = quiet.sample_every = quiet.check_replicas = quiet.spike_rewind = 0;
    Arena arena;
    RunParts parts(options_, model_.config, world_, arena, stream_.get());
    start_weights(parts.stage.parameters(), parts.stage.router_bias(), model_.weights.get(), options_.seed,
                  stream_.get());
    Step& step = parts.make_step(options_, arena);
    RunInputs inputs{{.config = model_.config}, nullptr,    checkpoint_, std::move(val_tokens_),
                     std::move(*train_tokens_), max_steps_, data_};
    const std::optional<RunState> state = resume(inputs, requested_.recorded, options_, step, world_, log_);
    const std::string about =
        settle_attention(parts.stage, options_.attention, state ? state->attention : AttentionKind::auto_, world_);
    if (!about.empty()) log_.warning("%s", about.c_str());
    const Log silent(false);
    Metrics metrics(real_files(), "");
    Trainer trainer({quiet, silent, arena, step, inputs.train_tokens, nullptr, real_files(), metrics, agreement_,
                     nullptr, nullptr, "", max_steps_, 0, parts.groups, &world_});
    if (state) trainer.restore(*state);
    const int steps_left = last_step() - after_step_;
    if (steps_left <= 0) return text("none is left after step ", after_step_);
    auto timed_steps = [&](int up_to) {
        quiet.stop_after = after_step_ + std::min(up_to, steps_left);
        const double start = steady_seconds();
        const RunEnd end = trainer.run();
        if (end == RunEnd::signal) throw Error(ErrorKind::resumable, "a signal came while steps were timed");
        return steady_seconds() - start;
    };
    double seconds = timed_steps(1);   // it warms up
    const int more = static_cast<int>(std::clamp(kSecondsOfSteps / seconds, 1.0, 10.0));
    const int timed = std::min(value_of<int>(world_.from_first(to_bytes(more))), steps_left - 1);
    if (timed > 0) seconds = timed_steps(1 + timed) / timed;
    const TokenSet* const of_validation = options_.overfit_single_batch ? &inputs.train_tokens : inputs.validation();
    const double validation = options_.val_every > 0 ? time_validation(step, *of_validation) : 0;
    const double validations = validation > 0 ? steps_left / options_.val_every + 1 : 0,
                 all = steps_left * seconds + validations * validation;
    std::string words = formatted("%.1f ms each, %.0f tokens/s", 1e3 * seconds,
                                  static_cast<double>(options_.tokens_per_step()) / seconds);
    if (validation > 0) words += formatted("; a validation %.1f s", validation);
    return words + text("; ", steps_left, " steps would take about ", duration_text(all), ", ",
                        size_text(static_cast<double>(arena.high_water())), " of device memory");
}

// Returns the seconds of a whole validation: times one micro-batch per rank, and multiplies by their number.
double RunCheck::time_validation(Step& step, const TokenSet& tokens) {
    const auto at_once =
        static_cast<std::uint64_t>(options_.micro_batch) * static_cast<std::uint64_t>(world_.mesh().dp);
    const std::uint64_t sequences = Validation(step, tokens, options_.val_max_batches, agreement_).sequences(),
                        micro_batches = (sequences + at_once - 1) / at_once;
    Validation part(step, tokens, static_cast<int>(std::min(sequences, at_once)), agreement_);
    part.loss();   // warms up
    const double start = steady_seconds();
    part.loss();
    return (steady_seconds() - start) * static_cast<double>(micro_batches);
}

}   // namespace

DiskRoom disk_room(const std::string& folder) {
    std::filesystem::path at = std::filesystem::absolute(folder);
    while (!std::filesystem::exists(at) && at.has_relative_path()) at = at.parent_path();
    struct statvfs room {};
    if (::statvfs(at.c_str(), &room) != 0 || ::access(at.c_str(), W_OK | X_OK) != 0) {
        throw Error(ErrorKind::io, text(at.string(), ": nothing can be written: ", std::strerror(errno)),
                    text("It is where ", folder, " lies. Give another --output-dir."));
    }
    return {at.string(), static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize};
}

int check_run(const CommandLine& requested, World& world, const StopSignals& signals) {
    signals.leave_if_received();
    const Log log(world.is_first());
    open_device(world.place().local_rank);
    CommandLine of_ranks = requested;
    fit_to_ranks(of_ranks.options, world.mesh().dp);
    return RunCheck(of_ranks, world, signals, log).run();
}
