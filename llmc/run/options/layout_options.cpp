#include "llmc/run/options/layout_options.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/model/layer/tp_region.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/options/sync_options.h"
#include "llmc/run/step/step_sizes.h"

namespace {

// Returns the divisors of n from `least` to `most`, as a list for people.
std::string divisors(std::int64_t n, int least, int most) {
    std::string list;
    for (int d = least; d <= most; d++) {
        if (n % d == 0) list += text(list.empty() ? "" : ", ", d);
    }
    return list;
}

void check_context(const Options& o) {
    const int u = o.ulysses();
    const int unit = 2 * o.cp, below = o.seq_len / unit * unit, above = below + unit;
    refuse_if(o.cp > 1 && o.seq_len != below,
              text("--seq-len ", o.seq_len, " --cp ", o.cp, ": expected sequences of a multiple of 2 x cp = ", unit,
                   " tokens"),
              below > 0 ? text("The nearest lengths that work are ", below, " and ", above, ".")
                        : text("The shortest length that works is ", above, "."));
    const std::string given = text("--cp ", o.cp, " --cp-mode ", name_of(o.cp_mode), " --cp-ulysses ", o.cp_ulysses);
    const std::string hybrid = divisors(o.cp, 2, o.cp - 1);   // group sizes that work for a hybrid
    const bool fits = o.cp_mode == ContextMode::ring      ? u == 1
                      : o.cp_mode == ContextMode::ulysses ? u == o.cp
                                                          : u > 1 && u < o.cp && o.cp % u == 0;
    refuse_if(!fits,
              text(given, ": expected ",
                   o.cp_mode == ContextMode::ring      ? "no --cp-ulysses, or 1"
                   : o.cp_mode == ContextMode::ulysses ? "no --cp-ulysses, or that of --cp"
                                                       : "groups that divide --cp, larger than 1 and smaller"),
              text("Groups of 1 are --cp-mode ring, of all cp ranks --cp-mode ulysses; --cp-mode hybrid works with ",
                   hybrid.empty() ? "no value" : hybrid, "."));
}

void check_pipeline(const Options& o) {
    const bool interleaved = o.pipeline.kind == PipelineKind::interleaved;
    refuse_if(o.pipeline.chunks == 1 && interleaved, "--pp-schedule interleaved with --pp-chunks 1",
              "Give --pp-chunks 2 or more; with one, 1f1b is the same with less memory.");
    refuse_if(o.pp == 1 && interleaved, "--pp-schedule interleaved with --pp 1", "Give --pp 2 or more.");
}

void check_zero_group(const Options& o) {
    refuse_if(o.zero_group == 1 && !o.has_replicas(), "--zero-group 1: one rank shares nothing",
              "Give groups of two or more, or --zero 0.");
}

// Refuses group sizes that do not divide the heads of a tp rank.
void check_heads(const Options& options, const ModelConfig& config) {
    auto works = [&](std::int64_t ulysses) { return config.shares_heads(options.tp * ulysses); };
    if (works(options.ulysses())) return;
    auto list = [&](int most, bool divides_cp) {
        std::string all;
        for (int u = 1; u <= most; u++) {
            if (works(u) && (!divides_cp || options.cp % u == 0)) all += text(all.empty() ? "" : ", ", u);
        }
        return all;
    };
    throw Error(ErrorKind::usage,
                text("a model of ", config.heads, " heads, ",
                     config.kv_heads() < config.heads ? text(config.kv_heads(), " of keys and values, ") : "",
                     options.tp > 1 ? text("--tp ", options.tp, " ") : "", "--cp ", options.cp, " --cp-mode ",
                     name_of(options.cp_mode), ": expected heads that ",
                     options.tp > 1 ? text(options.tp, " x ") : "groups of ", options.ulysses(), " ranks can share"),
                text("Groups that work are of ", list(options.cp - 1, true),
                     " ranks: 1 is --cp-mode ring, others are --cp-mode hybrid "
                     "--cp-ulysses. Or take another --cp: ",
                     list(64, false), "."));
}

// Checks how experts are chosen and dealt out.
void check_experts(const Options& o, const ModelConfig& config) {
    refuse_if(o.force_balance && config.experts == 0, "--force-balance 1: the model has no experts",
              "Give --experts, or leave --force-balance out.");
    refuse_if(o.capacity_factor > 0 && config.experts == 0,
              text("--capacity-factor ", o.capacity_factor, ": the model has no experts"),
              "Give --experts, or leave --capacity-factor out.");
    if (o.ep == 1) return;
    const std::string given = text("--ep ", o.ep);
    refuse_if(config.experts == 0, given + ": the model has no experts", "Give --experts, or leave --ep out.");
    const std::int64_t E = config.experts;
    refuse_if(E % o.ep != 0, text(given, " --experts ", E, ": expected a number of ranks that divides the experts"),
              text("Numbers that work: ", divisors(E, 1, static_cast<int>(E)), "."));
    refuse_if(o.tp > 1 && !o.sequence_parallel, text(given, " --tp ", o.tp, " --sequence-parallel 0"),
              "Leave --sequence-parallel out: tp ranks must have different tokens to send.");
}

void check_layers(const Options& options, std::int64_t layers) {
    const int pieces = options.pp * options.pipeline.chunks;
    if (options.pp == 1 || layers >= pieces) return;
    const std::int64_t most = layers / options.pipeline.chunks;
    throw Error(
        ErrorKind::usage,
        options.pipeline.chunks == 1 ? text("--pp ", options.pp, ": a model of ", layers, " layers")
                                     : text("--pp ", options.pp, " x --pp-chunks ", options.pipeline.chunks, " = ",
                                            pieces, " pieces of a model of ", layers, " layers"),
        text("Every piece needs a layer: ", most > 1 || options.pipeline.chunks == 1
                                                ? text("at most --pp ", std::max<std::int64_t>(1, most), " works.")
                                                : text("give fewer --pp-chunks, or --pp-schedule 1f1b.")));
}

}   // namespace

PipelineShape pipeline_shape(const Options& options) {
    return {options.pipeline.kind, options.pp, options.micro_steps(), options.pipeline.chunks, options.pipeline.warmup};
}

void check_layout(const Options& o) {
    std::int64_t ranks = 1;
    constexpr std::int64_t most = 1 << 20;   // a mesh counts in int, and plans have memory for each rank
    for (const int axis : {std::max(o.dp, 1), o.cp, o.tp, o.pp}) ranks = std::min(ranks, most + 1) * axis;
    refuse_if(ranks > most,
              text("--dp ", o.dp, " --cp ", o.cp, " --tp ", o.tp, " --pp ", o.pp, ": more than ", most, " ranks"),
              "Give fewer.");
    check_zero_group(o);
    check_sync(o);
    check_pipeline(o);
    check_context(o);
    for (std::int64_t length : o.shorter_lengths()) {
        refuse_if(length > o.seq_len || o.seq_len % length != 0,
                  text("--seq-len-schedule ", o.seq_len_schedule, ": sequences of --seq-len ", o.seq_len,
                       " cannot be cut into ", length, " tokens"),
                  "Give lengths that divide --seq-len.");
        check_context(o.with_seq_len(length));
    }
}

PipelineSchedule schedule_of_stage(const Options& options, int stage) {
    const PipelineShape shape = pipeline_shape(options);
    const std::vector<PipelineSchedule> lists = pipeline_schedules(shape);
    const std::string fault = fault_in(lists, shape.chunks, shape.micro_batches);
    ENSURE(fault.empty(), "--pp-schedule ", name_of(shape.kind), ": ", fault);
    return lists[static_cast<std::size_t>(stage)];
}

int warmup_sets(const Options& options, int stage) {
    PipelineShape shape = pipeline_shape(options);
    auto sets = [&] { return live_peak(pipeline_schedules(shape)[static_cast<std::size_t>(stage)]).to_weight; };
    const int with = sets();
    shape.warmup = 0;
    return with - sets();
}

void add_pipeline(StageOptions& stage, const Options& of_run, const ModelConfig& config) {
    if (of_run.pp == 1) return;
    const Options options = of_run.with_batch(of_run.tokens_by_step().largest());   // keeps the most
    check_layers(options, config.layers);
    const PipelineShape shape = pipeline_shape(options);
    const int index = stage.place.at.pp;
    stage.chunks = chunks_of_stage(config, shape, index, options.seq_len);
    stage.in_flight = in_flight(schedule_of_stage(options, index), stage.chunks, stage.document_mask);
}

// Returns a line for people: the sets of activations, boundary buffers and memory of delayed gradients that the
// schedule needs.
static std::string memory_by_schedule(const Stage& stage) {
    const RankSizes& sizes = stage.sizes();
    const InFlight& most = stage.options().in_flight;
    const int layers = most_layers(stage.options().chunks);
    auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    auto set_bytes = [&](Recompute level) { return activation_set_bytes(sizes, layers, level); };
    const std::int64_t set = set_bytes(stage.options().recompute), made_again = set_bytes(Recompute::none) - set;
    const std::int64_t boundary = sizes.residual_elements() * static_cast<std::int64_t>(sizeof(floatX));
    std::string line =
        formatted("  by the schedule: %d sets of activations of %.2f MiB, %d + %d boundaries of %.2f MiB",
                  most.activations, mebibytes(set), most.inputs, most.gradients, mebibytes(boundary));
    if (most.delayed > 0 && made_again > 0) {
        line += formatted(", %d x %.2f MiB of what is computed again, for delayed gradients of weights", most.delayed,
                          mebibytes(made_again));
    }
    return line;
}

std::string pipeline_memory(const Stage& stage, const Arena& arena, const Options& options, const MeshShape& mesh,
                            Agreement& agreement) {
    const int stage_0_adds = warmup_sets(options.with_batch(options.tokens_by_step().largest()), 0);
    const std::vector<std::string> bytes = agreement.gather(to_bytes(arena.bytes()));
    auto bytes_of = [&](std::size_t rank) { return value_of<std::size_t>(bytes[rank]); };
    std::size_t most = 0;
    for (std::size_t rank = 1; rank < bytes.size(); rank++) {
        if (bytes_of(rank) > bytes_of(most)) most = rank;
    }
    const int index = coordinates_of(mesh, static_cast<int>(most)).pp;
    return memory_by_schedule(stage) +
           (stage_0_adds > 0 ? text("\n  --pp-warmup adds ", stage_0_adds, " sets of them on stage 0, fewer on others")
                             : std::string()) +
           formatted("\n  the rank that takes most: %d, of pipeline stage %d, %.2f MiB\n", static_cast<int>(most),
                     index, static_cast<double>(bytes_of(most)) / (1 << 20));
}

void check_model_fits(const Options& options, const ModelConfig& config) {
    check_layers(options, config.layers);
    check_activations(options, config);
    std::vector<Options> shapes{options};
    for (std::int64_t length : options.shorter_lengths()) shapes.push_back(options.with_seq_len(length));
    for (const Options& shape : shapes) {
        check_tensor_parallel(config, {shape.pp, 1, shape.cp, shape.tp}, shape.tp > 1 && shape.sequence_parallel,
                              shape.micro_batch, shape.seq_len);
    }
    check_heads(options, config);
    refuse_if(config.experts > 0 && options.tp > 1 && options.optimizer == OptimizerKind::muon,
              text("--optimizer muon --tp ", options.tp, " with --experts: Muon needs matrices that tp cuts"),
              "Give --tp 1, or another --optimizer.");
    check_experts(options, config);
    check_sync_fits(options, config);
}

namespace {

// Finds the first group of `size` neighbours that spans several hosts, and returns a warning; empty: there is none.
std::string spread_group(int size, const std::vector<std::string>& hosts, const std::string& whose) {
    for (std::size_t first = 0; size > 1 && first + static_cast<std::size_t>(size) <= hosts.size();
         first += static_cast<std::size_t>(size)) {
        const auto begin = hosts.begin() + static_cast<std::ptrdiff_t>(first), end = begin + size;
        const auto other = std::find_if(begin, end, [&](const std::string& host) { return host != *begin; });
        if (other == end) continue;
        std::map<std::string, int> ranks;
        for (const std::string& host : hosts) ranks[host]++;
        const bool blocks_fit =
            std::ranges::all_of(ranks, [size](const auto& host) { return host.second % size == 0; });
        return text(whose, " reaches over nodes: ranks ", first, " and ", other - hosts.begin(),
                    " are on different ones. Its traffic, several times that of all others, is slow there: ",
                    blocks_fit ? "give neighbouring ranks to one node (mpirun --map-by slot, srun --distribution=block)"
                               : "take as many as divide the ranks of a node");
    }
    return "";
}

}   // namespace

std::vector<std::string> hosts_in_blocks(int ranks, int ranks_of_a_node) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < ranks; rank++) hosts.push_back(text("node ", rank / ranks_of_a_node));
    return hosts;
}

std::vector<std::string> layout_warnings(const Options& o, const std::vector<std::string>& hosts) {
    std::vector<std::string> warnings = sync_warnings(o);
    const int copies = o.has_replicas() ? std::max(1, o.zero_group) : o.data_ranks() * o.cp;
    if (o.optimizer == OptimizerKind::muon && o.zero == 0 && copies > 1) {
        warnings.push_back(text("--optimizer muon --zero 0: each of ", copies,
                                " ranks makes the same matrices orthogonal: --zero 1 deals them out"));
    }
    const int m = o.micro_steps();
    if (m < o.pp) {
        warnings.push_back(text("a step of ", m, " micro-batches keeps at most ", m, " of ", o.pp,
                                " pipeline stages busy: --total-batch ", o.pp * o.tokens_per_micro_step(),
                                " or more fills them"));
    }
    const std::string tp = spread_group(o.tp, hosts, text("--tp ", o.tp));
    if (!tp.empty()) warnings.push_back(tp);
    const std::string ulysses =   // a group is tp times as many neighbours
        tp.empty() && o.ulysses() > 1
            ? spread_group(o.ulysses() * o.tp, hosts, text("a Ulysses group of ", o.ulysses()))
            : "";
    if (!ulysses.empty()) warnings.push_back(ulysses);
    const std::string ep = tp.empty() ? spread_group(o.ep, hosts, text("--ep ", o.ep)) : "";
    if (!ep.empty()) warnings.push_back(ep);
    const int rows = o.micro_batch * o.seq_len / o.cp,
              chunks = tensor_chunks(rows, o.sequence_parallel ? o.tp : 1, o.tp_chunks);
    if (o.tp > 1 && chunks < o.tp_chunks) {
        warnings.push_back(text("--tp-chunks ", o.tp_chunks, ": ", rows, " rows can only be cut into ", chunks,
                                " chunks for ", o.tp, " ranks: less of forward's traffic is hidden"));
    }
    return warnings;
}

void fit_to_ranks(Options& options, int dp) {
    options.dp = dp;
    check_zero_group(options);
    refuse_if(
        options.ep > 1 && !options.has_replicas() && options.zero_group > 0 && options.zero_group < dp * options.cp,
        text("--ep ", options.ep, " with --zero-group ", options.zero_group,
             ": experts are cut over all ranks that hold the same ones"),
        "Leave --zero-group out, or give --ep 1.");
    check_sync_ranks(options);
    check_total_batch(options);
    const char* flag = "--total-batch ";
    for (std::int64_t tokens : options.tokens_by_step().values()) {
        check_micro_batches(options.with_batch(tokens), flag);
        flag = "--batch-schedule: ";
    }
}
