#include "llmc/run/options/settings.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/model/parameters/param_table.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/options/sync_options.h"

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

std::string real(float value) { return formatted("%g", static_cast<double>(value)); }

// Adds what options mean together, in words.
void meaning(Table& table, const Options& o, const RunFacts& facts) {
    const std::string over = o.data_ranks() > 1 ? text(" x ", o.data_ranks(), " ranks") : std::string();
    table.row("total batch size",
              text(o.tokens_per_step(), " tokens = ", o.micro_steps(), " x ", o.micro_batch, " x ", o.seq_len, over));
    table.row("data-parallel ranks", o.data_ranks());
    const int zero_ranks = o.data_ranks() * o.cp, groups = o.zero_group > 0 ? zero_ranks / o.zero_group : 1;
    table.row("ZeRO stage", zero_ranks == 1 && o.zero > 0 ? text(o.zero, ": one rank shares nothing")
                            : groups > 1                  ? text(o.zero, ", ", groups, " groups of ", o.zero_group)
                                                          : text(o.zero));
    for (const auto& [name, value] : sync_in_words(o, facts.model, facts.max_steps)) table.row(name.c_str(), value);
    table.row("learning rate", text("peak ", real(o.lr), ", ", name_of(o.schedule)));
    if (o.lr_batch > 0 || !o.batch_schedule.empty()) {
        table.row("LR follows the batch", text(name_of(o.lr_scaling), ", 1 at ", o.tokens_of_lr(), " tokens"));
    }
    table.row("recompute", name_of(o.recompute));
}

// Options that have another value than by default, under their own names.
void given(Table& table, const std::vector<OptionText>& options) {
    for (const OptionText& option : options) {
        if (!option.is_default) table.row(("--" + option.name).c_str(), option.value.empty() ? "none" : option.value);
    }
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

std::string settings_table(const Options& options, const std::vector<OptionText>& texts, const RunFacts& facts) {
    Table table;
    table.row("Parameter", "Value");
    table.rule();
    meaning(table, options, facts);
    table.rule();
    given(table, texts);
    table.rule();
    found(table, options, facts);
    return table.lines();
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
    for (const std::string& warning : sync_warnings(options, model)) warnings.push_back(warning);
    const char* checks = std::getenv("TRAIN_GPT_CHECKS");
    if (checks && *checks && std::string(checks) != "none") {
        warnings.push_back(text("TRAIN_GPT_CHECKS=", checks,
                                ": without a GPU, what kernels do is checked: for tests, slow, and "
                                "sums may round as on a GPU"));
    }
    return warnings;
}
