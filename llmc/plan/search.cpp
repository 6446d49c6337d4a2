#include "llmc/plan/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/plan/all_cores.h"
#include "llmc/plan/closed_form.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/option_names.h"

namespace {

constexpr int kMostChunks = 8;       // chunks per pipeline stage
constexpr int kMostSequences = 64;   // sequences of a micro-batch that the search chooses

// Returns the options as a run of their own, or nothing if they are refused.
std::optional<PlannedRun> possible(const Options& options) {
    try {
        check_layout(options);
        return planned_run(options);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        return std::nullopt;
    }
}

// Returns 1, 2, 4, ... up to `most`, and `own`.
std::vector<int> powers_of_two(int most, int own) {
    std::vector<int> all;
    for (int power = 1; power <= most; power *= 2) all.push_back(power);
    if (std::ranges::find(all, own) == all.end()) all.push_back(own);
    return all;
}

// Returns the numbers of ranks that may share the model's experts.
std::vector<int> expert_ranks(const Options& options) {
    const std::int64_t experts = planned_model(options).experts;
    std::vector<int> all{1};
    for (int ranks = 2; ranks <= experts; ranks++) {
        if (experts % ranks == 0) all.push_back(ranks);
    }
    return all;
}

// Returns options with their schedule, which a single stage does not have.
Options as_asked(Options options) {
    if (options.pp == 1) options.pipeline = {};
    return options;
}

// Returns the schedules of a pipeline, as options.
std::vector<Options> scheduled(const Options& options) {
    if (options.pp == 1) return {as_asked(options)};
    const int warmup = options.pipeline.warmup;
    std::vector<PipelineOptions> asked{{PipelineKind::one_f_one_b, 1, warmup}, {PipelineKind::zero_bubble, 1, warmup}};
    for (const int chunks : powers_of_two(kMostChunks, options.pipeline.chunks)) {
        if (chunks > 1) asked.push_back({PipelineKind::interleaved, chunks});
    }
    std::vector<Options> all;
    for (const PipelineOptions& pipeline : asked) all.emplace_back(options).pipeline = pipeline;
    const bool is_listed = std::ranges::any_of(asked, [&](const PipelineOptions& one) {
        return one.kind == options.pipeline.kind && one.chunks == options.pipeline.chunks;
    });
    if (!is_listed) all.push_back(options);
    return all;
}

// Returns options with the numbers of ranks that may share a sequence, at most `most`, and the ways to share it: hybrid
// with groups of powers of two, and as the options have it.
std::vector<Options> shared_sequences(const Options& options, int most) {
    std::vector<Options> all;
    for (const int cp : powers_of_two(most, options.cp)) {
        Options one = options;
        one.cp = cp;
        const int own = one.cp_mode == ContextMode::hybrid ? one.cp_ulysses : 0;
        one.cp_mode = ContextMode::hybrid;
        for (const int ulysses : powers_of_two(cp / 2, std::max(1, own))) {
            one.cp_ulysses = ulysses;
            if (cp > 1 && ulysses > 1) all.push_back(one);
        }
        one.cp_ulysses = 0;
        for (const ContextMode mode : {ContextMode::ring, ContextMode::ulysses}) {
            one.cp_mode = mode;
            if (cp > 1 || mode == ContextMode::ring) all.push_back(one);
        }
    }
    return all;
}

// Returns every layout that divides the ranks, whether or not the model allows it.
std::vector<Options> divided(const Options& requested, const Machine& machine, int ranks) {
    std::vector<Options> all;
    const std::vector<int> experts = expert_ranks(requested);
    const std::vector<Options> contexts =
        shared_sequences(requested, std::min(ranks, requested.seq_len / kLeastContext));
    for (int tp = 1; tp <= std::min(ranks, machine.devices_per_node); tp++) {
        for (Options options : contexts) {
            const int cp = options.cp;
            for (int pp = 1; tp * cp * pp <= ranks; pp++) {
                if (ranks % (tp * cp * pp) != 0) continue;
                options.tp = tp, options.pp = pp, options.dp = ranks / (tp * cp * pp);
                for (const Options& schedule : scheduled(options)) {
                    for (const int ep : experts) {
                        for (int zero = 0; zero <= (options.dp * cp > 1 ? 3 : 0); zero++) {
                            for (const Recompute level : {Recompute::none, Recompute::block}) {
                                all.push_back(schedule);
                                all.back().ep = ep, all.back().zero = zero, all.back().recompute = level;
                            }
                        }
                    }
                }
            }
        }
    }
    return all;
}

// Returns the fastest candidate, by the closed form with an estimate of the pipeline, of the micro-batches that the
// layout may have, of at most `most` sequences; nothing if it may have none.
std::optional<Candidate> best_micro_batch(Options layout, const ParamTable& table, const Machine& machine, int most) {
    std::vector<int> sizes{layout.micro_batch};
    if (layout.micro_batch == kAutoMicroBatch) sizes = powers_of_two(most, 1);
    std::optional<Candidate> best;
    for (const int size : sizes) {
        layout.micro_batch = size;
        const std::optional<PlannedRun> run = possible(layout);
        if (!run) continue;
        const StepTime time = closed_form_time(run->options, table, run->mesh, machine, PipelineTime::estimated);
        if (best && best->formula <= time.seconds) continue;
        best.emplace();
        best->run = *run, best->time = time, best->formula = time.seconds;
    }
    return best;
}

std::vector<Candidate> all_layouts(const Options& options, const Machine& machine, int ranks,
                                   const std::function<bool(const Options&)>& is_allowed) {
    std::vector<Options> listed = divided(options, machine, ranks);
    if (is_allowed) std::erase_if(listed, [&](const Options& one) { return !is_allowed(one); });
    std::vector<std::optional<Candidate>> found(listed.size());
    const ParamTable table(planned_model(options));
    on_all_cores(static_cast<int>(listed.size()), [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        found[at] = best_micro_batch(listed[at], table, machine, kMostSequences);
    });
    std::vector<Candidate> all;
    for (std::optional<Candidate>& candidate : found) {
        if (candidate) all.push_back(std::move(*candidate));
    }
    return all;
}

double most_bytes(const Candidate& candidate) {
    double most = 0;
    for (const int stage : fullest_stages(candidate.run.options)) {
        const Arena arena = fullest_rank(candidate.run, stage, candidate.run.options.recompute.value());
        most = std::max(most, static_cast<double>(arena.high_water()));
    }
    return most;
}

// Counts the memory of a candidate. Where the micro-batch is open and does not fit, takes the fastest smaller one that
// does: memory grows by equal amounts with sequences.
void count_memory(Candidate& candidate, bool size_is_open, const ParamTable& table, const Machine& machine) {
    candidate.bytes = most_bytes(candidate);
    const int size = candidate.run.options.micro_batch;
    if (!size_is_open || candidate.fits(machine) || size == 1) return;
    Options layout = candidate.run.options;
    layout.micro_batch = kAutoMicroBatch;
    std::optional<Candidate> other = best_micro_batch(layout, table, machine, 1);
    if (!other) return;
    other->bytes = most_bytes(*other);
    if (other->fits(machine)) {
        const double each = (candidate.bytes - other->bytes) / (size - 1);
        int most = size / 2;
        while (most > 1 && other->bytes + each * (most - 1) > machine.allowed_bytes()) most /= 2;
        std::optional<Candidate> larger = best_micro_batch(layout, table, machine, most);
        if (larger && larger->run.options.micro_batch > 1) {
            larger->bytes = most_bytes(*larger);
            if (larger->fits(machine)) other = larger;
        }
    }
    candidate = *other;
}

// Counts the memory of layouts in their order, until enough fit; after many of them only of those with the most --zero
// and --recompute listed, which take the least. Returns those that fit with the simulator's time, by that.
std::vector<Candidate*> first_that_fit(std::vector<Candidate>& all, bool size_is_open, const Machine& machine,
                                       const SearchEffort& effort) {
    const ParamTable table(all.front().run.config);
    constexpr int kTogether = 16;
    int zero = 0;
    Recompute level = Recompute::none;
    for (const Candidate& candidate : all) {
        zero = std::max(zero, candidate.run.options.zero);
        level = std::max(level, *candidate.run.options.recompute);
    }
    auto is_lean = [&](const Options& o) { return o.recompute == level && (o.zero == zero || o.dp * o.cp == 1); };
    std::vector<Candidate*> fitting;
    std::size_t next = 0;
    auto enough = [&] {   // a smaller micro-batch has made some slower than the next
        const auto wanted = static_cast<std::ptrdiff_t>(effort.wanted);
        auto before_next = [&](const Candidate* one) { return one->formula <= all[next].formula; };
        return std::ranges::count_if(fitting, before_next) >= wanted || std::ssize(fitting) >= 3 * wanted;
    };
    while (next < all.size() && !enough()) {
        std::vector<Candidate*> together;
        for (; next < all.size() && static_cast<int>(together.size()) < kTogether; next++) {
            if (next < effort.counts_all || is_lean(all[next].run.options)) together.push_back(&all[next]);
        }
        on_all_cores(static_cast<int>(together.size()), [&](int i) {
            count_memory(*together[static_cast<std::size_t>(i)], size_is_open, table, machine);
        });
        for (Candidate* const candidate : together) {
            if (candidate->fits(machine)) fitting.push_back(candidate);
        }
    }
    std::ranges::stable_sort(fitting, {}, [](const Candidate* candidate) { return candidate->formula; });
    fitting.resize(std::min(fitting.size(), static_cast<std::size_t>(effort.wanted)));
    on_all_cores(static_cast<int>(fitting.size()), [&](int i) {
        Candidate& candidate = *fitting[static_cast<std::size_t>(i)];
        const PlannedRun& run = candidate.run;
        if (run.mesh.pp > 1) candidate.time = closed_form_time(run.options, table, run.mesh, machine);
        candidate.formula = candidate.time.seconds;
        candidate.least = least_seconds(run.options, table, run.mesh, machine);
    });
    std::ranges::stable_sort(fitting, {}, [](const Candidate* candidate) { return candidate->formula; });
    return fitting;
}

// Replays the first `count` of the candidates, two at a time; passes over those whose lower bound is not below the best
// so far.
void replay_best(const std::vector<Candidate*>& candidates, const Machine& machine, int count) {
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t next = 0; next < candidates.size() && count > 0;) {
        std::vector<Candidate*> together;
        for (; next < candidates.size() && static_cast<int>(together.size()) < std::min(2, count); next++) {
            if (candidates[next]->least < best) together.push_back(candidates[next]);
        }
        on_all_cores(static_cast<int>(together.size()), [&](int i) {
            Candidate& candidate = *together[static_cast<std::size_t>(i)];
            const PlannedRun& run = candidate.run;
            candidate.time = step_time(run.options, run.config, run.mesh, machine, false);
            candidate.replayed = true;
        });
        for (const Candidate* candidate : together) best = std::min(best, candidate->time.seconds);
        count -= static_cast<int>(together.size());
    }
}

// Returns the main reason why a candidate loses against the best.
std::string reason(const Candidate& candidate, const Candidate& best, const Machine& machine) {
    if (candidate.bytes == 0)
        return best.fits(machine) ? "slower by the closed form than those that fit" : "not counted";
    if (!candidate.fits(machine)) {
        return formatted("does not fit: %.1f of %.1f GiB allowed", candidate.bytes / (1 << 30),
                         machine.allowed_bytes() / (1 << 30));
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

std::string layout_text(const Options& o) {
    const Options by_default;
    auto other = [](const char* name, const auto& value, const auto& usual) {
        return value == usual ? std::string() : text(" ", name, " ", value);
    };
    return text("--tp ", o.tp, " --pp ", o.pp, " --dp ", o.dp, other("--cp", o.cp, by_default.cp),
                other("--cp-mode", std::string(name_of(o.cp_mode)), name_of(by_default.cp_mode)),
                other("--cp-ulysses", o.cp_ulysses, by_default.cp_ulysses), other("--ep", o.ep, by_default.ep),
                other("--pp-schedule", std::string(name_of(o.pipeline.kind)), name_of(by_default.pipeline.kind)),
                other("--pp-chunks", o.pipeline.chunks, by_default.pipeline.chunks),
                other("--pp-warmup", o.pipeline.warmup, by_default.pipeline.warmup), " --zero ", o.zero,
                " --recompute ", name_of(o.recompute.value()));
}

bool keeps_given(const Options& o, const Options& other, const std::function<bool(const char*)>& is_given) {
    auto is_kept = [&](const char* name, bool same) { return same || !is_given(name); };
    const bool whole_sequences = other.cp == 1 && o.cp_mode != ContextMode::hybrid;   // there is no way to share them
    const bool one_stage = other.pp == 1 && o.pipeline.kind != PipelineKind::interleaved;   // which has no schedule
    return is_kept("--tp", other.tp == o.tp) && is_kept("--pp", other.pp == o.pp) &&
           is_kept("--cp", other.cp == o.cp) && is_kept("--cp-mode", whole_sequences || other.cp_mode == o.cp_mode) &&
           is_kept("--cp-ulysses", whole_sequences || other.ulysses() == o.ulysses()) &&
           is_kept("--dp", o.dp == 0 || other.dp == o.dp) && is_kept("--ep", other.ep == o.ep) &&
           is_kept("--zero", other.zero == o.zero) &&
           is_kept("--recompute", !o.recompute || other.recompute == o.recompute) &&
           is_kept("--pp-schedule", one_stage || other.pipeline.kind == o.pipeline.kind) &&
           is_kept("--pp-chunks", one_stage || other.pipeline.chunks == o.pipeline.chunks) &&
           is_kept("--pp-warmup", one_stage || other.pipeline.warmup == o.pipeline.warmup);
}

void take_layout(Options& to, const Options& from) {
    to.tp = from.tp, to.pp = from.pp, to.dp = from.dp, to.ep = from.ep;
    to.cp = from.cp, to.cp_mode = from.cp_mode, to.cp_ulysses = from.cp_ulysses;
    to.pipeline = from.pipeline;
    to.zero = from.zero, to.recompute = from.recompute;
}

std::vector<Candidate> search_layouts(const Options& options, const Machine& machine, int ranks,
                                      const std::function<bool(const Options&)>& is_allowed,
                                      const SearchEffort& effort) {
    refuse_if(options.total_batch == 0, "a search of layouts without --total-batch",
              "Give the tokens of a step; without it each layout has a step of its own size.");
    std::vector<Candidate> all = all_layouts(options, machine, ranks, is_allowed);
    if (all.empty()) {
        const std::string batches = batches_for_all(options, ranks);
        throw Error(ErrorKind::usage, text("no layout of ", ranks, " ranks divides this model and batch"),
                    batches.empty()
                        ? "Give another --total-batch, --micro-batch or number of ranks, or leave more options open."
                        : batches);
    }
    std::ranges::stable_sort(all, {}, &Candidate::formula);
    const std::vector<Candidate*> fitting =
        first_that_fit(all, options.micro_batch == kAutoMicroBatch, machine, effort);
    if (can_record_steps()) replay_best(fitting, machine, effort.replays);
    auto rank = [&](const Candidate& c) { return c.fits(machine) ? (c.replayed ? 0 : 1) : c.bytes > 0 ? 2 : 3; };
    std::ranges::stable_sort(
        all, {}, [&](const Candidate& c) { return std::pair(rank(c), fitting.empty() ? c.bytes : c.time.seconds); });
    return all;
}

std::string batches_for_all(const Options& options, int ranks) {
    std::int64_t odd = ranks, sequences = options.total_batch / options.seq_len;
    while (odd % 2 == 0) odd /= 2;
    if (options.total_batch % options.seq_len == 0 && sequences % odd == 0) return "";
    std::int64_t share = odd;   // ranks among which the batches are shared out: as many of the others as now
    while (share < ranks && sequences % (2 * (share / odd)) == 0) share *= 2;
    const std::int64_t unit = share * std::max(1, options.micro_batch) * options.seq_len,
                       below = options.total_batch / unit * unit;
    return text("--total-batch ", below > 0 ? text(below, " or ") : "", below + unit,
                " would let data parallelism use all ", ranks, " GPUs.");
}

std::optional<int> fewest_devices(const Options& requested, const Machine& machine, int most) {
    for (int ranks = requested.cp; ranks <= most; ranks *= 2) {
        for (int tp = 1; tp <= std::min(ranks, machine.devices_per_node); tp *= 2) {
            for (int pp = 1; tp * requested.cp * pp <= ranks; pp *= 2) {
                if (ranks % (tp * requested.cp * pp) != 0) continue;
                const int dp = ranks / (tp * requested.cp * pp);
                Options options = requested;
                options.startup.ranks = ranks;
                options.zero_group = 0, options.ep = std::gcd(requested.ep, dp * requested.cp * tp);
                options.total_batch = std::int64_t{pp} * dp * options.micro_batch * options.seq_len;
                options.batch_schedule.clear();
                options.tp = tp, options.pp = pp, options.dp = dp, options.zero = dp * requested.cp > 1 ? 3 : 0;
                options.recompute = Recompute::block;
                if (pp == 1) options.pipeline = {};
                const std::optional<PlannedRun> run = possible(options);
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
    const bool any_fits = candidates.front().fits(machine);
    std::string lines = text(candidates.size(), " layouts divide; ",
                             any_fits ? "the best of them:\n" : "none fits; those that take the least memory:\n");
    const int size = candidates.front().run.options.micro_batch;
    const bool sizes_differ =
        std::ranges::any_of(candidates, [&](const Candidate& c) { return c.run.options.micro_batch != size; });
    std::size_t fitting = 0, told = 0;
    for (const Candidate& c : candidates) {
        if (told == most) break;
        if (c.fits(machine) && ++fitting > most * 5 / 8) continue;   // leaves lines for the others
        told++;
        const Options& o = c.run.options;
        const std::string layout = layout_text(o) + (sizes_differ ? text(" --micro-batch ", o.micro_batch) : "");
        lines += formatted("  %10.3f ms %s  %-52s %s\n", 1e3 * c.time.seconds, c.replayed ? "replayed" : "formula ",
                           layout.c_str(), reason(c, candidates.front(), machine).c_str());
    }
    return lines;
}
