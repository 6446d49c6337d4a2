#include "llmc/plan/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "llmc/base/log.h"
#include "llmc/plan/all_cores.h"
#include "llmc/plan/closed_form.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/option_names.h"

namespace {

// Returns a layout as a run of its own, or nothing if the options refuse it.
std::optional<PlannedRun> possible(Options options, int tp, int pp, int dp, int zero, Recompute recompute) {
    options.tp = tp, options.pp = pp, options.dp = dp, options.zero = zero, options.recompute = recompute;
    if (pp == 1) options.pp_chunks = 1, options.pp_warmup = 0, options.pp_schedule = PipelineKind::one_f_one_b;
    try {
        return planned_run(options);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        return std::nullopt;
    }
}

std::vector<Candidate> all_layouts(const Options& options, const Machine& machine, int ranks,
                                   const std::function<bool(const Options&)>& is_allowed) {
    std::vector<PlannedRun> runs;
    for (int tp = 1; tp <= std::min(ranks, machine.devices_per_node); tp++) {
        for (int pp = 1; tp * options.cp * pp <= ranks; pp++) {
            if (ranks % (tp * options.cp * pp) != 0) continue;
            const int dp = ranks / (tp * options.cp * pp);
            for (int zero = 0; zero <= (dp * options.cp > 1 ? 3 : 0); zero++) {
                for (const Recompute level : {Recompute::none, Recompute::block}) {
                    std::optional<PlannedRun> run = possible(options, tp, pp, dp, zero, level);
                    if (run && (!is_allowed || is_allowed(run->options))) runs.push_back(std::move(*run));
                }
            }
        }
    }
    std::vector<Candidate> all(runs.size());
    on_all_cores(static_cast<int>(runs.size()), [&](int i) {
        Candidate& candidate = all[static_cast<std::size_t>(i)];
        candidate.run = std::move(runs[static_cast<std::size_t>(i)]);
        const auto& [of_run, config, mesh] = candidate.run;
        candidate.time = closed_form_time(of_run, config, mesh, machine);
        candidate.formula = candidate.time.seconds;
        candidate.least = least_seconds(of_run, config, mesh, machine);
    });
    return all;
}

double most_bytes(const Candidate& candidate) {
    double most = 0;
    const int pp = candidate.run.mesh.pp;
    for (const int stage : {0, pp - 1}) {   // the first stage keeps most activations, the last the classifier
        const Arena arena = fullest_rank(candidate.run, stage, candidate.run.options.recompute.value());
        most = std::max(most, static_cast<double>(arena.high_water()));
    }
    return most;
}

// Replays candidates two at a time, in the order of the closed form; skips those whose lower bound is not below the
// best so far.
void replay_best(const std::vector<Candidate*>& fitting, const Machine& machine, int replays) {
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t next = 0; next < fitting.size() && replays > 0;) {
        std::vector<Candidate*> together;
        for (; next < fitting.size() && static_cast<int>(together.size()) < std::min(2, replays); next++) {
            if (fitting[next]->least < best) together.push_back(fitting[next]);
        }
        on_all_cores(static_cast<int>(together.size()), [&](int i) {
            Candidate& candidate = *together[static_cast<std::size_t>(i)];
            const PlannedRun& run = candidate.run;
            candidate.time = step_time(run.options, run.config, run.mesh, machine, false);
            candidate.replayed = true;
        });
        for (const Candidate* candidate : together) best = std::min(best, candidate->time.seconds);
        replays -= static_cast<int>(together.size());
    }
}

// Returns the main reason why a candidate loses against the best.
std::string reason(const Candidate& candidate, const Candidate& best, const Machine& machine) {
    if (candidate.bytes == 0) return "slower by the closed form than those that fit";
    if (!candidate.fits(machine)) {
        return formatted("does not fit: %.1f of %.1f GiB", candidate.bytes / (1 << 30),
                         machine.memory_bytes / (1 << 30));
    }
    if (&candidate == &best) return "the fastest that fits";
    if (!candidate.replayed && best.replayed) {
        const bool slower = candidate.least >= best.time.seconds;
        return formatted("%+.1f%% by the closed form, %s", 100 * (candidate.formula / best.formula - 1),
                         slower ? "and slower even with nothing but matmuls" : "not replayed");
    }
    const double slower = candidate.time.seconds - best.time.seconds;
    auto idle = [](const StepTime& t) { return t.bubble_share * (t.seconds - t.exposed); };
    const double bubble = idle(candidate.time) - idle(best.time), exposed = candidate.time.exposed - best.time.exposed,
                 compute = candidate.time.computing - best.time.computing;
    const char* const what = bubble >= std::max(exposed, compute) ? "its bubble"
                             : exposed >= compute                 ? "communication that shows"
                                                                  : "more computation";
    return formatted("%.1f%% slower: %s", 100 * slower / best.time.seconds, what);
}

}   // namespace

std::string Candidate::layout() const {
    const Options& o = run.options;
    return text("--tp ", o.tp, " --pp ", o.pp, " --dp ", o.dp, o.cp > 1 ? text(" --cp ", o.cp) : "",
                o.ep > 1 ? text(" --ep ", o.ep) : "", " --zero ", o.zero, " --recompute ",
                name_of(o.recompute.value()));
}

std::vector<Candidate> search_layouts(const Options& options, const Machine& machine, int ranks, int wanted,
                                      int replays, const std::function<bool(const Options&)>& is_allowed) {
    std::vector<Candidate> all = all_layouts(options, machine, ranks, is_allowed);
    if (all.empty()) {
        throw Error(ErrorKind::usage, text("no layout of ", ranks, " ranks divides this model and batch"),
                    "Give another --total-batch, --micro-batch or number of ranks, or leave more options open.");
    }
    std::ranges::stable_sort(all, {}, [](const Candidate& c) { return c.time.seconds; });
    std::vector<Candidate*> fitting;
    for (Candidate& candidate : all) {
        if (static_cast<int>(fitting.size()) == wanted) break;
        candidate.bytes = most_bytes(candidate);
        if (candidate.fits(machine)) fitting.push_back(&candidate);
    }
    if (can_record_steps()) replay_best(fitting, machine, replays);
    auto rank = [&](const Candidate& c) { return c.fits(machine) ? (c.replayed ? 0 : 1) : c.bytes > 0 ? 2 : 3; };
    std::ranges::stable_sort(all, {}, [&](const Candidate& c) { return std::pair(rank(c), c.time.seconds); });
    return all;
}

std::optional<int> fewest_devices(const Options& requested, const Machine& machine, int most) {
    for (int ranks = requested.cp; ranks <= most; ranks *= 2) {
        for (int tp = 1; tp <= std::min(ranks, machine.devices_per_node); tp *= 2) {
            for (int pp = 1; tp * requested.cp * pp <= ranks; pp *= 2) {
                if (ranks % (tp * requested.cp * pp) != 0) continue;
                const int dp = ranks / (tp * requested.cp * pp);
                Options options = requested;
                options.zero_group = 0, options.ep = std::gcd(requested.ep, dp * requested.cp * tp);
                options.total_batch = std::int64_t{pp} * dp * options.micro_batch * options.seq_len;
                options.batch_schedule.clear();
                const std::optional<PlannedRun> run =
                    possible(options, tp, pp, dp, dp * requested.cp > 1 ? 3 : 0, Recompute::block);
                if (!run) continue;
                Candidate candidate;
                candidate.run = *run;
                candidate.bytes = most_bytes(candidate);
                if (candidate.fits(machine)) return ranks;
            }
        }
    }
    return std::nullopt;
}

std::string search_text(const std::vector<Candidate>& candidates, const Machine& machine, std::size_t most) {
    std::string lines = text(candidates.size(), " layouts divide; the best of them:\n");
    for (std::size_t i = 0; i < std::min(most, candidates.size()); i++) {
        const Candidate& c = candidates[i];
        lines += formatted("  %10.3f ms %s  %-52s %s\n", 1e3 * c.time.seconds, c.replayed ? "replayed" : "formula ",
                           c.layout().c_str(), reason(c, candidates.front(), machine).c_str());
    }
    return lines;
}
