#include "llmc/run/options/sync_options.h"

#include <algorithm>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/kernels/optim/topk_chunks.h"
#include "llmc/model/parameters/param_table.h"
#include "llmc/run/options/option_names.h"

namespace {

// Checks what replicas of local steps are.
void check_local_steps(const Options& o) {
    if (o.local.every == 0) return;
    const std::string given = text("--local-steps ", o.local.every);
    refuse_if(o.zero_group == 0, given + " without --zero-group",
              "Give the number of neighbouring ranks of dp x cp that train together; 1: each by itself.");
    refuse_if(o.zero_group % o.cp != 0, text(given, " --zero-group ", o.zero_group, " --cp ", o.cp),
              "A group must have whole sequences: give a multiple of --cp.");
    refuse_if(sizeof(floatX) < sizeof(float) && o.master_weights != MasterWeights::fp32,
              text(given, " --master-weights ", name_of(o.master_weights)),
              "The groups' weights are averaged in fp32: give --master-weights 1.");
    refuse_if(o.local.fragments > o.local.every, text(given, " --outer-fragments ", o.local.fragments),
              "One fragment takes its outer step after a step: give at most as many as there are local steps.");
    refuse_if(o.local.delay >= o.local.every, text(given, " --outer-delay ", o.local.delay),
              "Weights arrive before they leave again: give fewer steps than --local-steps.");
    refuse_if(
        o.local.compression == OuterCompression::topk && o.local.blend > 0,
        text(given, " --outer-compression topk --outer-blend ", formatted("%g", static_cast<double>(o.local.blend))),
        "What is left out would count twice, in the weights and beside them: leave --outer-blend out.");
}

// Refuses what needs gradients in the step that made them.
void check_staleness(const Options& o) {
    if (o.staleness == 0) return;
    const std::string given = text("--staleness ", o.staleness);
    refuse_if(o.zero > 1, text(given, " --zero ", o.zero, ": gradients are summed into shards in every micro-batch"),
              "Give --zero 0 or 1, which sum them once a step.");
    refuse_if(o.local.every > 0, text(given, " --local-steps ", o.local.every),
              "Give one of them: local steps send no gradients between groups.");
    refuse_if(o.ep > 1, text(given, " --ep ", o.ep),
              "Experts that are dealt out take their steps together: give --ep 1.");
    refuse_if(o.grad_dtype != DType::fp32, text(given, " --grad-dtype ", name_of(o.grad_dtype)),
              "Delayed gradients are kept in fp32: leave --grad-dtype out.");
    refuse_if(o.skip_loss_z > 0,
              text(given, " --skip-loss-z ", o.skip_loss_z, ": the step that has the loss applies other gradients"),
              "Give --skip-norm-z, the norm of the gradients that the step applies.");
    refuse_if(o.spike_rewind > 0,
              text(given, " --spike-rewind ", o.spike_rewind, ": a checkpoint may hold the gradients of the spike"),
              "Leave --spike-rewind out: the spike's update is skipped all the same.");
}

// Refuses what sums gradients another way than whole and once a step, over ranks that hold the same.
void check_compression(const Options& o) {
    refuse_if(
        o.max_steps > 0 && o.grad_compression.start >= o.max_steps,
        text("--grad-compression-start ", o.grad_compression.start, ": expected less than --max-steps = ", o.max_steps),
        "Leave --grad-compression-start out, or begin earlier.");
    if (o.grad_compression.how == GradCompression::none) return;
    const std::string given = text("--grad-compression ", name_of(o.grad_compression.how));
    refuse_if(o.zero > 1 && o.zero_group == 0,
              text(given, " --zero ", o.zero,
                   ": what compression leaves out of whole gradients must be kept, which this stage shares out"),
              "Give --zero 0 or 1, or a --zero-group, between which gradients are compressed.");
    refuse_if(o.local.every > 0, text(given, " --local-steps ", o.local.every),
              "Give --outer-compression for what local steps send.");
    refuse_if(
        o.zero_group > 0 && o.grad_compression.how == GradCompression::powersgd,
        text(given, " --zero-group ", o.zero_group, ": between groups travel shards, and factors are of matrices"),
        "Give another --grad-compression, or leave --zero-group out.");
    refuse_if(o.staleness > 0, text(given, " --staleness ", o.staleness),
              "Give one of them: late gradients travel behind a whole step as they are.");
    refuse_if(o.ep > 1, text(given, " --ep ", o.ep), "Experts that are dealt out have sums of their own: give --ep 1.");
    refuse_if(o.grad_dtype != DType::fp32, text(given, " --grad-dtype ", name_of(o.grad_dtype)),
              "Gradients are added up in fp32 until they are compressed: leave --grad-dtype out.");
    refuse_if(o.optimizer == OptimizerKind::muon,
              text(given, " --optimizer muon: its matrices have one owner each, not a shard on every rank"),
              "Give another --optimizer.");
}

// Returns how many ranks send the entries of topk each to all others; 0: to their owners alone, at --zero 1.
int ranks_that_gather_entries(const Options& o) {
    const int ranks = o.data_ranks() * o.cp, groups = o.zero_group > 0 ? std::max(1, ranks / o.zero_group) : 1;
    return groups > 1 ? groups : o.zero == 0 ? ranks : 0;
}

}   // namespace

double topk_share(const Options& o) {
    const double entry = sizeof(float) + sizeof(std::int32_t), sent = topk_entries(kTopkChunk, o.grad_compression.topk);
    const int gather = ranks_that_gather_entries(o);
    return sent / kTopkChunk * entry / sizeof(float) * (gather > 0 ? gather / 2.0 : 1.0);
}

namespace {

// Returns what is to be said of --grad-topk if it sends no fewer bytes than gradients as they are; else nothing.
std::string too_much_of_topk(const Options& o) {
    const double share = o.grad_compression.how == GradCompression::topk ? topk_share(o) : 0.0;
    if (share < 1) return "";
    const double k = static_cast<double>(o.grad_compression.topk), gather = ranks_that_gather_entries(o),
                 below = gather > 0 ? 1.0 / gather : 0.5;   // fractions that send fewer
    return text("--grad-topk ", formatted("%g", k), " sends ", formatted("%.3g", share),
                " times the bytes of gradients that travel as they are: ",
                below > 2.0 / kTopkChunk ? text("less than ", formatted("%.3g", below), " sends fewer")
                : o.zero > 0             ? "with so many groups take another --grad-compression"
                                         : "with so many ranks take --zero 1 or another --grad-compression");
}

// Likewise of --outer-topk.
std::string too_much_of_outer_topk(const Options& o) {
    if (o.local.every == 0 || o.local.compression != OuterCompression::topk) return "";
    const int replicas = std::max(1, o.data_ranks() * o.cp / std::max(1, o.zero_group));
    const double k = static_cast<double>(o.local.topk), share = k * replicas;   // 8kP(R - 1) of 8P(R - 1) / R bytes
    if (share < 1) return "";
    return text("--outer-topk ", formatted("%g", k), " sends ", formatted("%.3g", share),
                " times the bytes of weights that travel as they are: less than ", formatted("%.3g", 1.0 / replicas),
                " sends fewer");
}

// Returns the share of parameters whose gradients travel compressed.
double compressed_share(const Options& o, const ModelConfig& model) {
    const ParamTable table(model);
    const MeshShape mesh{o.pp, o.data_ranks(), o.cp, o.tp};
    std::int64_t compressed = 0;
    for (const ParamInfo& info : table.all()) {
        if (is_compressed(info.tensor, mesh, o.grad_compression)) compressed += info.tensor.elements();
    }
    return static_cast<double>(compressed) / static_cast<double>(table.elements());
}

std::string travelling(const Options& o, const ModelConfig& model) {
    const GradCompressionOptions& how = o.grad_compression;
    switch (how.how) {
        case GradCompression::none: break;
        case GradCompression::bf16_: return "bf16, with error feedback";
        case GradCompression::int8: return "int8, with an fp32 scale for 256 of them, and error feedback";
        case GradCompression::topk:
            return text("entries of 8 bytes, the largest ", formatted("%g", static_cast<double>(how.topk)),
                        " of each 1,024, with error feedback: ", formatted("%.3g", topk_share(o)),
                        " of the bytes without");
        case GradCompression::powersgd:
            return text("factors of rank ", how.rank, " for ", formatted("%.1f%%", 100 * compressed_share(o, model)),
                        " of the parameters, with error feedback");
    }
    return "fp32";
}

}   // namespace

void check_sync(const Options& o) {
    check_local_steps(o);
    check_staleness(o);
    check_compression(o);
}

void check_sync_ranks(const Options& o) {
    const int ranks = o.dp * o.cp;
    refuse_if(o.local.compression != OuterCompression::none && o.zero_group >= ranks,
              text("--outer-compression ", name_of(o.local.compression), " --zero-group ", o.zero_group, ": the ",
                   ranks, " ranks of dp x cp are one group, so nothing travels in an outer step"),
              "Give --outer-compression none, or start more ranks.");
    refuse_if(o.grad_compression.how != GradCompression::none && o.zero_group >= ranks,
              text("--grad-compression ", name_of(o.grad_compression.how), " --zero-group ", o.zero_group, ": the ",
                   ranks, " ranks of dp x cp are one group, so nothing travels between groups"),
              "Leave --zero-group out, with --zero 0 or 1, or start more ranks.");
    refuse_if(o.grad_compression.how != GradCompression::none && ranks == 1,
              text("--grad-compression ", name_of(o.grad_compression.how),
                   ": one rank sees all tokens of its part of the model, so no gradient travels"),
              "Give --grad-compression none, or start more ranks.");
}

void check_sync_fits(const Options& o, const ModelConfig& config) {
    refuse_if(o.local.fragments > config.layers + 2,
              text("--outer-fragments ", o.local.fragments, ": the model has ", config.layers,
                   " layers, an embedding and a head"),
              text("Give at most ", config.layers + 2, "."));
}

bool is_predicted(const Options& o) {
    return o.local.every == 0 && o.staleness == 0 && o.grad_compression.how == GradCompression::none;
}

void check_predicted(const Options& o, bool plan, bool layout) {
    if (is_predicted(o)) return;
    const bool compressed = o.grad_compression.how != GradCompression::none;
    const std::string given = o.local.every > 0 ? text("--local-steps ", o.local.every)
                              : compressed      ? text("--grad-compression ", name_of(o.grad_compression.how))
                                                : text("--staleness ", o.staleness);
    refuse_if(
        plan && compressed, "plan " + given + ": a plan counts gradients of 4 bytes an element",
        "Leave it out: the plan is then that of gradients that travel as they are. --print-memory 1 knows what such "
        "a run keeps.");
    refuse_if(layout && compressed, given + " --layout auto: the search counts gradients of 4 bytes an element",
              "Give the layout: --tp, --pp, --cp and --zero.");
    refuse_if(
        plan, "plan " + given + ": a plan knows only steps whose gradients travel in each",
        text("Leave it ", o.local.every > 0 ? "and --outer-... " : "",
             "out: the plan is then that of a step together, which is no faster. --print-memory 1 knows what such "
             "a run keeps."));
    refuse_if(layout, given + " --layout auto: the search knows only steps whose gradients travel in each",
              o.local.every > 0
                  ? "Give the layout of a replica: --tp, --pp, --cp, --zero, and --zero-group for the ranks of one."
                  : "Give the layout: --tp, --pp, --cp and --zero.");
}

std::vector<std::pair<std::string, std::string>> sync_in_words(const Options& o, const ModelConfig& model, int steps) {
    if (o.grad_compression.how == GradCompression::none) return {};
    const int ranks = o.data_ranks() * o.cp;
    const bool between_groups = o.zero_group > 0 && ranks / o.zero_group > 1;
    std::vector<std::pair<std::string, std::string>> rows{
        {between_groups ? "between groups gradients travel in" : "gradients travel in", travelling(o, model)}};
    const int before = steps_before_compression(o.grad_compression, steps);
    if (before > 0) rows.emplace_back("so after steps", text(before));
    return rows;
}

std::vector<std::string> sync_warnings(const Options& o) {
    std::vector<std::string> warnings;
    for (const std::string& topk : {too_much_of_topk(o), too_much_of_outer_topk(o)}) {
        if (!topk.empty()) warnings.push_back(topk);
    }
    return warnings;
}

std::vector<std::string> sync_warnings(const Options& o, const ModelConfig& model) {
    if (o.grad_compression.how == GradCompression::none || compressed_share(o, model) > 0) return {};
    return {text("--grad-compression ", name_of(o.grad_compression.how), " --grad-rank ", o.grad_compression.rank,
                 ": no matrix is more than twice as large as its factors, so nothing is compressed")};
}
