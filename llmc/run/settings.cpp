#include "llmc/run/settings.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/kernels/least_time.h"
#include "llmc/model/parameters/param_table.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/option_names.h"

namespace {

class Table {
public:
    Table() { rule(); }
    template <class Value>
    void row(const char* name, const Value& value) {
        lines_ += formatted("| %-21s | %-50s |\n", name, text(value).c_str());
    }
    void rule() { lines_ += "+-----------------------+----------------------------------------------------+\n"; }
    const std::string& lines() const { return lines_; }

private:
    std::string lines_;
};

std::string or_none(const std::string& value) { return value.empty() ? "none" : value; }
std::string real(float value) { return formatted("%g", static_cast<double>(value)); }

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

std::string travelling(const Options& o, const RunFacts& facts) {
    const GradCompressionOptions& how = o.grad_compression;
    switch (how.how) {
        case GradCompression::none: break;
        case GradCompression::bf16_: return "bf16, with error feedback";
        case GradCompression::int8: return "int8, with an fp32 scale for 256 of them, and error feedback";
        case GradCompression::topk:
            return text("entries of 8 bytes, the largest ", real(how.topk),
                        " of each 1,024, with error feedback: ", formatted("%.3g", topk_share(o)),
                        " of the bytes without");
        case GradCompression::powersgd:
            return text("factors of rank ", how.rank, " for ",
                        formatted("%.1f%%", 100 * compressed_share(o, facts.model)),
                        " of the parameters, with error feedback");
    }
    return "fp32";
}

void asked(Table& table, const Options& o, const RunFacts& facts) {
    table.row("train data pattern", o.overfit_single_batch ? o.val_data + " (one batch)" : o.train_data);
    table.row("val data pattern", o.val_data);
    if (o.document_mask) {
        table.row("documents", text("do not see each other", o.boundary_loss ? "" : ", no loss at their ends"));
    }
    table.row("output dir", or_none(o.output_dir));
    table.row("micro batch size B", o.micro_batch);
    table.row("sequence length T", o.seq_len);
    if (!o.seq_len_schedule.empty()) table.row("cut from steps on to", o.seq_len_schedule);
    const std::string over = o.data_ranks() > 1 ? text(" x ", o.data_ranks(), " ranks") : std::string();
    table.row("total batch size", text(o.tokens_per_step(), " tokens = ", o.micro_steps(), " x B x T", over));
    if (!o.batch_schedule.empty()) table.row("tokens from steps on", o.batch_schedule);
    table.row("data-parallel ranks", o.data_ranks());
    if (o.pp > 1) {
        table.row("pipeline stages", text(o.pp, ", ", name_of(o.pp_schedule),
                                          o.pp_chunks > 1 ? text(" x ", o.pp_chunks, " chunks") : std::string(),
                                          o.pp_warmup > 0 ? text(", warm-up ", o.pp_warmup) : std::string()));
    }
    if (o.cp > 1) {
        const std::string groups = o.cp_mode == ContextMode::hybrid ? text(", groups of ", o.ulysses()) : std::string();
        table.row("context-parallel ranks", text(o.cp, ", ", name_of(o.cp_mode), groups));
    }
    if (o.tp > 1) {
        table.row(
            "tensor-parallel ranks",
            text(o.tp, o.sequence_parallel ? ", sequence-parallel, " : ", all rows on each, ", o.tp_chunks, " chunks"));
    }
    if (o.ep > 1) {
        table.row("expert-parallel ranks",
                  text(o.ep, ", that each hold other experts, in at most ", o.ep_chunks, " chunks"));
    }
    const int zero_ranks = o.data_ranks() * o.cp;
    const bool groups = o.zero_group > 0 && o.zero_group < zero_ranks;
    table.row("ZeRO stage", zero_ranks == 1 && o.zero > 0 ? text(o.zero, ": one rank shares nothing")
                            : groups ? text(o.zero, ", ", zero_ranks / o.zero_group, " groups of ", o.zero_group)
                                     : text(o.zero));
    if (o.local.every > 0) {
        table.row("local steps",
                  text(o.local.every, " of ", groups ? zero_ranks / o.zero_group : 1, " groups, outer rate ",
                       real(o.local.lr), ", momentum ", real(o.local.momentum), ", compression ",
                       name_of(o.local.compression),
                       o.local.compression == OuterCompression::topk ? text(" of ", 100 * o.local.topk, "%") : ""));
        if (o.local.fragments > 1 || o.local.has_flights()) {
            table.row("moves", text(o.local.fragments, " fragments in turns, ", o.local.delay,
                                    " steps on their way, own weights count ", real(o.local.blend)));
        }
    }
    if (o.grad_compression.how != GradCompression::none) {
        table.row(groups ? "between groups gradients travel in" : "gradients travel in", travelling(o, facts));
        const int before = steps_before_compression(o.grad_compression, facts.max_steps);
        if (before > 0) table.row("so after steps", before);
    }
    if (o.staleness > 0) table.row("staleness", "each step applies the gradients of the step before");
    table.row("optimizer", name_of(o.optimizer));
    table.row("LR schedule", o.schedule == ScheduleKind::wsd && o.decay_steps > 0
                                 ? text("wsd, decay over ", o.decay_steps, " steps")
                                 : std::string(name_of(o.schedule)));
    table.row("learning rate (LR)", real(o.lr));
    if (o.lr_batch > 0 || !o.batch_schedule.empty()) {
        table.row("LR follows the batch", text(name_of(o.lr_scaling), ", 1 at ", o.tokens_of_lr(), " tokens"));
    }
    table.row("warmup steps", o.warmup);
    table.row("final LR fraction", real(o.final_lr_frac));
    table.row("weight decay", real(o.weight_decay));
    if (o.z_loss > 0) table.row("z-loss", real(o.z_loss));
    if (o.capacity_factor > 0) table.row("expert capacity", text(real(o.capacity_factor), " x an even share"));
    if (o.force_balance) table.row("choice of experts", "in turn, for measuring alone");
    table.row("gradient clipping", real(o.grad_clip));
    if (o.ema > 0) table.row("average of weights", real(o.ema));
    table.row("skip update loss z", real(o.skip_loss_z));
    table.row("skip update norm z", real(o.skip_norm_z));
    table.row("validate every", o.val_every);
    table.row("validation sequences", o.val_max_batches);
    table.row("sample every", o.sample_every);
    table.row("master weights", o.master_weights ? "enabled" : "disabled");
    table.row("gradient type", name_of(o.grad_dtype));
    table.row("recompute", name_of(o.recompute));
    table.row("GELU fusion", o.gelu_fusion);
    table.row("algorithms to try", o.matmul_tries);
    table.row("seed", o.seed);
}

void found(Table& table, const Options& o, const RunFacts& f) {
    table.row("device", f.device_name);
    table.row("peak TFLOP/s", f.peak.per_second > 0
                                  ? formatted("%.2f (%s)", f.peak.per_second * 1e-12,
                                              f.peak.measured ? "measured, an estimate" : "data sheet")
                                  : std::string("unknown"));
    table.row("precision", f.precision);
    table.row("attention", f.attention == o.attention
                               ? name_of(f.attention)
                               : text(name_of(f.attention), " (asked for: ", name_of(o.attention), ")"));
    if (o.left_sms >= 0 && o.left_sms != o.comm_sms) {
        table.row("left to collectives", text(o.left_sms, " multiprocessors (asked for: ", o.comm_sms, ")"));
    }
    table.rule();
    table.row("weights", f.weights);
    table.row("max_sequence_length T", f.model.max_seq_len);
    table.row("vocab_size V", f.model.vocab_size);
    table.row("padded_vocab_size Vp", f.model.padded_vocab_size);
    table.row("num_layers L", f.model.layers);
    table.row("num_heads NH", f.model.heads);
    table.row("channels C", f.model.channels);
    for (const ModelField& field : model_fields()) {
        if (!field.basic && !field.is_default(f.model)) table.row(field.name, field.value_of(f.model));
    }
    table.row("num_parameters", parameter_count(f.model));
    table.rule();
    auto tokens = [](const TokenSet& set) {
        return text(set.tokens(), " in ", set.shards(), " file(s), ", set.windows(), " samples");
    };
    table.row("train tokens", tokens(f.train_tokens));
    if (f.val_tokens != nullptr) table.row("val tokens", tokens(*f.val_tokens));
    table.row("steps", f.max_steps);
    table.rule();
}

}   // namespace

std::string settings_table(const Options& options, const RunFacts& facts) {
    Table table;
    table.row("Parameter", "Value");
    table.rule();
    asked(table, options, facts);
    table.rule();
    found(table, options, facts);
    return table.lines();
}

std::string compression_in_words(GradCompression how, const ReductionTimes& times, bool between_groups) {
    const double saved = times.as_they_are - times.compressed;
    return text("gradients of a step travel", between_groups ? " between groups" : "", " in ",
                formatted("%.2f", 1e3 * times.compressed), " ms with --grad-compression ", name_of(how), ", in ",
                formatted("%.2f", 1e3 * times.as_they_are), " ms as they are, timed alone: ",
                clearly_faster(times.compressed, times.as_they_are)
                    ? text("it saves what is not hidden behind backward of these, up to ",
                           formatted("%.2f", 1e3 * saved), " ms")
                    : "it does not pay here");
}

std::vector<std::string> option_warnings(const Options& options, const ModelConfig& model) {
    std::vector<std::string> warnings;
    if (options.seq_len < model.max_seq_len) {
        warnings.push_back(text("--seq-len ", options.seq_len, " is shorter than the model's ", model.max_seq_len,
                                " positions: those beyond it will not be trained (GPT-2 trains with 1024, GPT-3 with "
                                "2048)"));
    }
    const bool is_constant = options.schedule == ScheduleKind::constant;
    if (!is_constant && options.final_lr_frac == 1.0f) {
        warnings.push_back(
            text("the ", name_of(options.schedule),
                 " schedule never falls: --final-lr-frac is 1. 0 lets it fall to nothing, 0.1 to a tenth; "
                 "--schedule constant says that it is meant to stay"));
    }
    if (is_constant && options.warmup > 0) {
        warnings.push_back(text("--warmup ", options.warmup, " is ignored by --schedule constant"));
    }
    if (options.grad_compression.how != GradCompression::none && compressed_share(options, model) == 0) {
        warnings.push_back(text("--grad-compression ", name_of(options.grad_compression.how), " --grad-rank ",
                                options.grad_compression.rank,
                                ": no matrix is more than twice as large as its factors, so nothing is compressed"));
    }
    const char* checks = std::getenv("TRAIN_GPT_CHECKS");
    if (checks && *checks && std::string(checks) != "none") {
        warnings.push_back(text("TRAIN_GPT_CHECKS=", checks,
                                ": without a GPU, what kernels do is checked: for tests, slow, and "
                                "sums may round as on a GPU"));
    }
    return warnings;
}
