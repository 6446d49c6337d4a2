#include "llmc/plan/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/data/token_file.h"
#include "llmc/io/file.h"
#include "llmc/model/parameters/param_table.h"
#include "llmc/model/precision.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/compression/grad_compression.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/plan/closed_form.h"
#include "llmc/plan/search.h"
#include "llmc/run/options/layout_options.h"

namespace {

ParameterCounts count_parameters(const ParamTable& table) {
    const ModelConfig& config = table.config();
    ParameterCounts all;
    for (const ParamInfo& param : table.all()) {
        const double share = param.tensor.cut == TensorCut::experts
                                 ? static_cast<double>(config.experts_per_token()) / static_cast<double>(config.experts)
                                 : 1;
        const auto padded = static_cast<double>(param.tensor.elements());
        const auto exported = static_cast<double>(param.exported_elements());
        all.padded += padded, all.exported += exported;
        all.active_padded += share * padded, all.active_exported += share * exported;
    }
    return all;
}

StageMemory memory_of(const PlannedRun& run, int stage) {
    const Arena arena = fullest_rank(run, stage, run.options.recompute.value());
    std::map<std::string, double> groups;
    for (const Allocation& a : arena.allocations()) {
        groups[a.name.substr(0, a.name.find('/'))] += static_cast<double>(a.bytes);
    }
    StageMemory memory{stage, static_cast<double>(arena.high_water()), {groups.begin(), groups.end()}};
    std::ranges::stable_sort(memory.lines, {}, [](const auto& line) { return -line.second; });
    return memory;
}

// Returns the memory of the first stage, of the fullest between the ends, and of the last.
std::vector<StageMemory> kinds_of_memory(const PlannedRun& run) {
    std::vector<StageMemory> all;
    for (const int stage : fullest_stages(run.options)) all.push_back(memory_of(run, stage));
    if (all.size() > 2) {
        const auto begin = all.begin() + 1, end = all.end() - 1;
        *begin = *std::ranges::max_element(begin, end, {}, &StageMemory::bytes);
        all.erase(begin + 1, end);
    }
    return all;
}

// --recompute auto: sets the lowest level with which nine tenths of the device suffice, as a run does.
void settle_recompute(PlannedRun& run, const Machine& machine) {
    if (run.options.recompute) return;
    for (const Recompute level : {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block}) {
        run.options.recompute = level;
        double most = 0;
        for (const int stage : fullest_stages(run.options)) {
            most = std::max(most, static_cast<double>(fullest_rank(run, stage, level).high_water()));
        }
        if (most <= machine.allowed_bytes()) return;
    }
}

Storage storage_of(const Plan& plan) {
    const Options& o = plan.run.options;
    const MeshShape& mesh = plan.run.mesh;
    const double steps = std::ceil(plan.tokens / static_cast<double>(o.tokens_per_step()));
    const int last = static_cast<int>(std::min<double>(steps, std::numeric_limits<int>::max()));
    Storage storage;
    storage.checkpoint_bytes = static_cast<double>(
        checkpoint_tensor_bytes(ParamTable(plan.run.config), optimizer_states(o, mesh),
                                o.has_replicas() ? replica_of(mesh, {}).replicas : 1, compressed_sums(mesh)));
    storage.checkpoints =
        checkpoints_to_come({}, last, o.checkpoint_every, {o.keep_checkpoints, o.major_checkpoint_every});
    if (o.keep_best) storage.checkpoints += 2;   // the next one is written beside the last
    storage.token_bytes = static_cast<int>(
        bytes_per_token(plan.run.config.vocab_size <= 0x10000 ? TokenFormat::gpt2 : TokenFormat::llama3));
    return storage;
}

// Returns true if the options allow a --zero-group of at most `most` ranks.
bool has_zero_group(const Plan& plan, int most) {
    const MeshShape& mesh = plan.run.mesh;
    if (plan.run.options.zero == 0 || mesh.ep > 1) return false;
    for (int ranks = 2; ranks <= most; ranks++) {
        if (mesh.dp * mesh.cp % ranks == 0) return true;
    }
    return false;
}

std::vector<std::string> warnings_of(const Plan& plan) {
    const Options& o = plan.run.options;
    const StepTime& step = plan.step;
    std::vector<std::string> warnings =
        layout_warnings(o, hosts_in_blocks(plan.run.mesh.size(), plan.machine.devices_per_node));
    if (!plan.machine.measured) {
        warnings.push_back("speeds of " + plan.machine.name + " are not measured but " + plan.machine.source +
                           "; on one, `train_gpt check --write-machine FILE` measures them");
    }
    if (o.pp > 1 && step.bubble_share > kAllowedIdle) {
        const std::int64_t wanted = (4 * (o.pp - 1) + o.pipeline.chunks - 1) / o.pipeline.chunks,
                           m = (wanted + o.pp - 1) / o.pp * o.pp;
        const std::string cure = o.micro_steps() < m
                                     ? text("--total-batch ", m * o.tokens_per_micro_step(), ", ", m,
                                            " micro-batches, brings it to a fifth or less of equal stages")
                                     : "its stages are unequal, for one has the classifier: take fewer of them";
        warnings.push_back(
            formatted("the pipeline's bubble is %.1f%% of the time: %s", 100 * step.bubble_share, cure.c_str()));
    }
    if (step.exposed > kAllowedIdle * step.seconds) {
        std::string most;
        double longest = 0;
        for (const auto& [name, group] : step.groups) {
            if (group.exposed > longest) longest = group.exposed, most = name;
        }
        warnings.push_back(formatted("communication shows for %.1f%% of a step, most of it in group %s",
                                     100 * step.exposed / step.seconds, most.c_str()));
    }
    const int shards = plan.run.mesh.shards();
    if (o.zero == 3 && shards > 1) {
        const double layer = (plan.parameters.padded -
                              static_cast<double>(plan.run.config.padded_vocab_size * plan.run.config.channels)) /
                             static_cast<double>(plan.run.config.layers) / o.tp * sizeof(floatX);
        const int nodes = (shards * o.tp + plan.machine.devices_per_node - 1) / plan.machine.devices_per_node;
        const double filled =
            plan.machine.link(nodes).seconds * shards * plan.machine.collective_bytes_per_second(shards, nodes);
        if (layer < filled) {
            warnings.push_back(
                formatted("--zero 3 gathers layers of %.2f MB, less than what %d ranks' latency costs on "
                          "these links (%.2f MB): --zero 2%s",
                          1e-6 * layer, shards, 1e-6 * filled,
                          has_zero_group(plan, shards - 1) ? ", or a smaller --zero-group" : ""));
        }
    }
    if (o.pp == 1 && o.micro_steps() > 1 && o.micro_steps() % 2 == 0 &&
        plan.most_bytes() < 0.45 * plan.machine.memory_bytes) {
        warnings.push_back(
            formatted("%d micro-batches of %d sequences leave more than half of the device's memory free: "
                      "--micro-batch %d does the same in fewer, larger kernels",
                      o.micro_steps(), o.micro_batch, 2 * o.micro_batch));
    }
    return warnings;
}

// Returns what makes the largest line of memory smaller.
std::string relief_of_memory(const Plan& plan, const std::string& line) {
    const Options& o = plan.run.options;
    const std::string smaller = o.micro_batch > 1 ? "a smaller --micro-batch" : "a shorter --seq-len";
    if (line == "activations")
        return o.recompute == Recompute::block ? smaller + ", or --cp" : "--recompute block, or " + smaller;
    int cuts = 0;   // the stage of ZeRO that cuts it
    if (line.starts_with("optimizer")) cuts = 1;
    if (line == "gradients") cuts = 2;
    if (line == "parameters") cuts = 3;
    if (cuts == 0) return smaller;
    const bool keeps_moments = (line == "optimizer m" || line == "optimizer v") && o.moments == DType::fp32;
    const std::string narrower = line == text("optimizer ", kMaster) ? ", or --master-weights compact"
                                 : keeps_moments                     ? ", or --moments bf16"
                                                                     : "";
    if (o.zero >= cuts) return "more ranks for --dp, --tp or --pp" + narrower;
    return (plan.run.mesh.shards() > 1 ? text("--zero ", cuts) : text("--tp or --pp, or --dp with --zero ", cuts)) +
           narrower;
}

// Returns what makes the traffic of a group of ranks smaller, or hides more of it; only what the options allow.
std::string relief_of_group(const Plan& plan, const std::string& name) {
    const Options& o = plan.run.options;
    const MeshShape& mesh = plan.run.mesh;
    auto is = [&](AxisSet axes) { return name == group_name(mesh, axes); };
    if (name == "pp") return "a smaller --pp";
    if (name.starts_with("cp ")) return "a smaller --cp, or longer sequences";   // the exchange of keys and values
    std::vector<std::string> ways;
    if (name == kExpertGroup) ways.push_back("a smaller --ep");
    if (name == "tp") ways.insert(ways.end(), {"a smaller --tp", "larger micro-batches"});
    const bool zero = is(zero_axes) || (mesh.ep > 1 && is(holder_axes));
    if (zero || is(replica_axes) || ways.empty()) ways.push_back("a larger --total-batch");
    if (zero) {
        if (o.zero > 1) ways.push_back("a smaller --zero");   // --zero 1 sends as much as 0
        const int node = plan.machine.devices_per_node;
        if (mesh.shards() * mesh.tp > node && has_zero_group(plan, node / mesh.tp)) {
            ways.push_back("--zero-group within a node");
        }
    }
    std::string all;
    for (std::size_t i = 0; i < ways.size(); i++) {
        all += text(i == 0 ? "" : i + 1 == ways.size() ? ", or " : ", ", ways[i]);
    }
    return all;
}

}   // namespace

std::vector<Limit> all_limits(const Plan& plan) {
    const StageMemory& fullest = *std::ranges::max_element(plan.memory, {}, &StageMemory::bytes);
    const auto& [line, bytes] = fullest.lines.front();
    std::vector<Limit> limits{{formatted("memory, %.2f of %.2f GiB, most of it %s, %.2f GiB", fullest.bytes / (1 << 30),
                                         plan.allowed_bytes() / (1 << 30), line.c_str(), bytes / (1 << 30)),
                               fullest.bytes / plan.allowed_bytes(), relief_of_memory(plan, line)}};
    for (const auto& [name, group] : plan.step.groups) {
        const double share = group.exposed / plan.step.seconds;
        if (group.exposed <= 0) continue;
        limits.push_back({formatted("links of group %s, exposed for %.1f%% of a step", name.c_str(), 100 * share),
                          share / kAllowedIdle, relief_of_group(plan, name)});
    }
    if (plan.run.mesh.pp > 1) {
        limits.push_back({formatted("the bubble, %.1f%% of the time", 100 * plan.step.bubble_share),
                          plan.step.bubble_share / kAllowedIdle,
                          "more micro-batches (--total-batch), --pp-chunks, or a smaller --pp"});
    }
    std::ranges::stable_sort(limits, {}, [](const Limit& limit) { return -limit.share; });
    return limits;
}

double Plan::most_bytes() const {
    double most = 0;
    for (const StageMemory& stage : memory) most = std::max(most, stage.bytes);
    return most;
}

double Plan::mfu() const {
    return tokens_per_second() * flops_per_token(run.config, run.options.seq_len) / (devices() * machine.mfu_peak());
}

Machine planned_machine(const Options& options) {
    const PlanOptions& requested = options.plan;
    Machine machine =
        requested.machine.empty() ? known_machine(requested.gpu, options.tf32) : read_machine(requested.machine);
    if (options.startup.gpus_per_node > 0) machine.devices_per_node = options.startup.gpus_per_node;
    if (requested.gpu_memory > 0) machine.memory_bytes = requested.gpu_memory * (1 << 30);
    if (!requested.link_intra.empty()) machine.intra = link_from("--link-intra", requested.link_intra);
    if (!requested.link_inter.empty()) machine.inter = link_from("--link-inter", requested.link_inter);
    return machine;
}

double planned_tokens(const Options& options, const ParameterCounts& parameters) {
    const std::string& given = options.plan.tokens;
    if (given.empty()) {
        if (options.max_steps < 0) return 20 * parameters.padded;
        return static_cast<double>(options.tokens_by_step().sum(0, options.max_steps));
    }
    double number = 0;
    const char* const end = given.data() + given.size();
    const auto [rest, status] = std::from_chars(given.data(), end, number);
    const std::string_view unit(rest, end);
    double factor = 0;
    for (const auto& [name, value] : {std::pair("", 1.0),
                                      {"x", parameters.padded},
                                      {"x-active", parameters.active_padded},
                                      {"M", 1e6},
                                      {"B", 1e9},
                                      {"T", 1e12}}) {
        if (unit == name) factor = value;
    }
    if (status != std::errc() || factor == 0 || !(number > 0 && number < 1e18)) {
        throw Error(ErrorKind::usage,
                    text("--tokens ", given,
                         ": expected a number of tokens as in 300B, or one per parameter as in 20x, or per parameter "
                         "that a token "
                         "uses as in 20x-active"),
                    "For example --tokens 300B, which is 300e9.");
    }
    refuse_if(unit.empty() && number < static_cast<double>(options.tokens_per_step()),
              text("--tokens ", given, ": less than a step, which has ", options.tokens_per_step(), " tokens"),
              text("Give --tokens ", given, "x for so many tokens per parameter, or --tokens ", given,
                   "B for so many billions."));
    return number * factor;
}

constexpr int kMostDevices = 1 << 14;   // largest number of devices tried in the search for the fewest
constexpr std::size_t kFewLayouts = 5, kMostLayouts = 16;   // lines of a search, with --verbose 1 the latter

Plan make_plan(const Options& options) {
    Plan plan;
    plan.run = planned_run(options), plan.machine = planned_machine(options);
    settle_recompute(plan.run, plan.machine);
    const ParamTable table(plan.run.config);
    plan.parameters = count_parameters(table);
    plan.tokens = planned_tokens(plan.run.options, plan.parameters);
    plan.flops = plan.tokens * flops_per_token(plan.run.config, plan.run.options.seq_len);
    plan.best = ScalingLaw().optimum(plan.flops);
    plan.memory = kinds_of_memory(plan.run);
    const PlannedRun& run = plan.run;
    plan.replayed = can_record_steps() && plan.most_bytes() <= kMostRecordedBytes;
    plan.step = plan.replayed ? step_time(run.options, run.config, run.mesh, plan.machine)
                              : closed_form_time(run.options, ParamTable(run.config), run.mesh, plan.machine);
    plan.storage = storage_of(plan);
    plan.range = time_range(run.options, run.config, plan.machine);
    plan.fewest_devices = fewest_devices(options, plan.machine, kMostDevices);
    plan.warnings = warnings_of(plan);
    plan.limits = all_limits(plan);
    if (plan.limits.size() > 3) plan.limits.resize(3);
    return plan;
}

// Returns the seconds that a step may take in the best case, so that the late end of the range is in time.
static double step_by_deadline(const Options& options, const Machine& machine) {
    const ModelConfig config = planned_model(options);
    const double steps =
        planned_tokens(options, count_parameters(ParamTable(config))) / static_cast<double>(options.tokens_per_step());
    return options.plan.deadline / (steps * time_range(options, config, machine).most);
}

int plan_run(const Options& requested) {
    Options options = requested;
    const bool json = options.plan.json;
    std::string layouts;
    const bool by_deadline = options.plan.deadline > 0;
    DevicesFound devices{};
    if (options.plan.search || by_deadline) {
        refuse_if(!by_deadline && options.startup.ranks <= 0, "--search 1 without --processes: for how many GPUs?",
                  "Give --processes, as in --processes 8, or a --deadline.");
        refuse_if(by_deadline && options.startup.ranks > 0, "--deadline with --processes",
                  "Leave out --processes, or leave out --deadline to see how long that many GPUs take.");
        check_processes(options, true);
        if (!options.plan.kept.contains("--micro-batch")) options.micro_batch = kAutoMicroBatch;
        const Machine machine = planned_machine(options);
        auto is_given = [&](const char* name) { return requested.plan.kept.contains(name); };
        auto is_allowed = [&](const Options& other) { return keeps_given(requested, other, is_given); };
        std::vector<Candidate> found;
        if (by_deadline) {
            devices = search_devices(options, machine, step_by_deadline(requested, machine), kMostDevices, is_allowed);
            found = devices.layouts;
        } else {
            found = search_layouts(options, machine, options.startup.ranks, is_allowed);
        }
        const std::string batches = batches_for_all(options, found.front().run.mesh.size());
        layouts = "\n" + search_text(found, machine, options.plan.verbose ? kMostLayouts : kFewLayouts) +
                  (batches.empty() ? "" : batches + "\n");
        options = found.front().run.options;
    }
    Plan plan = make_plan(options);
    plan.tried = devices.tried, plan.meets_deadline = devices.in_time;
    if (!options.plan.svg.empty()) write_whole(real_files(), options.plan.svg, plan_svg(plan));
    if (!json) std::fputs((deadline_text(plan) + plan_headline(plan)).c_str(), stdout);
    std::fputs(layouts.c_str(), json ? stderr : stdout);
    std::fputs((json ? plan_json(plan) : plan_text(plan)).c_str(), stdout);
    if (!options.plan.compare.empty()) {
        const MeasuredRun measured = measured_run(real_files(), options.plan.compare);
        std::fputs(comparison_text(plan, measured).c_str(), json ? stderr : stdout);
    }
    return 0;
}
