#include "llmc/cli/option_faults.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "llmc/base/refuse.h"

static std::size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); i++) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); j++) {
            std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
        }
    }
    return row[b.size()];
}

// Names that nanoGPT, Hugging Face and Megatron give to our options.
static constexpr std::pair<const char*, const char*> kElsewhere[] = {
    {"--batch-size", "--micro-batch"},
    {"--micro-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--global-batch-size", "--total-batch"},
    {"--gradient-accumulation-steps", "--total-batch"},
    {"--block-size", "--seq-len"},
    {"--seq-length", "--seq-len"},
    {"--max-position-embeddings", "--seq-len"},
    {"--learning-rate", "--lr"},
    {"--lr-scheduler-type", "--schedule"},
    {"--lr-decay-style", "--schedule"},
    {"--warmup-steps", "--warmup"},
    {"--warmup-iters", "--warmup"},
    {"--lr-warmup-iters", "--warmup"},
    {"--max-iters", "--max-steps"},
    {"--train-iters", "--max-steps"},
    {"--n-layer", "--layers"},
    {"--num-layers", "--layers"},
    {"--num-hidden-layers", "--layers"},
    {"--n-head", "--heads"},
    {"--num-attention-heads", "--heads"},
    {"--n-embd", "--channels"},
    {"--hidden-size", "--channels"},
    {"--eval-interval", "--val-every"},
    {"--eval-iters", "--val-max-batches"},
    {"--save-steps", "--checkpoint-every"},
    {"--save-interval", "--checkpoint-every"},
    {"--out-dir", "--output-dir"},
    {"--save", "--output-dir"},
    {"--max-grad-norm", "--grad-clip"},
    {"--clip-grad", "--grad-clip"},
    {"--adam-beta1", "--beta1"},
    {"--adam-beta2", "--beta2"},
    {"--adam-epsilon", "--eps"},
    {"--max-new-tokens", "--tokens"},
    {"--model-name-or-path", "--model"},
    {"--dataset", "--data"},
    {"--tensor-model-parallel-size", "--tp"},
    {"--pipeline-model-parallel-size", "--pp"},
    {"--context-parallel-size", "--cp"},
};

void throw_unknown_option(const OptionTable& table, const std::string& given, const std::string& where) {
    std::string hint = "`train_gpt --help` lists every option.", spelled = given.substr(0, given.find('='));
    std::ranges::replace(spelled, '_', '-');
    for (const auto& [theirs, ours] : kElsewhere) {
        if (spelled == theirs && table.find(ours) != nullptr) spelled = ours;
    }
    std::size_t nearest = 4;
    for (const OptionRow& row : table.rows()) {
        const std::size_t distance = edit_distance(spelled, row.name);
        if (distance >= nearest) continue;
        nearest = distance;
        hint = text("Did you mean ", row.name, "?");
    }
    throw Error(ErrorKind::usage, text(where, given, ": unknown option"), hint);
}

void throw_unused_argument(Verb verb, const OptionTable& table, const std::string& given) {
    const std::string flag = given.substr(0, given.find('='));
    for (const auto& [name, other] : EnumNames<Verb>::list) {
        Options options;
        CommandLineOptions beside;
        if (OptionTable(other, options, beside).find(flag) == nullptr) continue;
        throw Error(ErrorKind::usage, text(flag, ": not an option of `train_gpt ", name_of(verb), "`"),
                    text("`", program_of(verb), " --help` lists its options."));
    }
    refuse_if(!given.starts_with("-") && table.find("--train-data") == nullptr, text(given, ": this follows no option"),
              table.find("--model") == nullptr ? "" : text("Did you mean --model ", given, "?"));
    std::error_code unknown;
    if (given.starts_with("-") || !std::filesystem::exists(given, unknown)) throw_unknown_option(table, given, "");
    throw Error(ErrorKind::usage, text(given, ": this file follows no option"),
                "Was a pattern not quoted? The shell then puts all files it matches in its place, and an option takes "
                "one: write --train-data 'FOLDER/*train*.bin', with the quotes.");
}
