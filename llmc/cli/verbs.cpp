#include "llmc/cli/verbs.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "llmc/base/check.h"

namespace {

struct VerbInfo {
    Verb verb;
    const char *name, *what;
    std::vector<std::string> options;   // besides --help; empty for those of training, which have all but kNotOfTraining
};

const std::vector<VerbInfo> kVerbs{
    {Verb::train, "train", "Pretrains GPT models.", {}},
    {Verb::generate,
     "generate",
     "Writes text with a model: after a prompt, token by token.",
     {"--model", "--tokenizer", "--prompt", "--prompt-file", "--tokens", "--temperature", "--top-k", "--top-p",
      "--stop-at-end", "--seed"}},
    {Verb::evaluate,
     "evaluate",
     "Measures a model: its loss on validation data, and the multiple-choice questions that it answers right.",
     {"--model",
      "--data",
      "--val-data",
      "--vocab-size",
      "--val-max-batches",
      "--hellaswag",
      "--hellaswag-data",
      "--micro-batch",
      "--seq-len",
      "--attention",
      "--tf32",
      "--zero",
      "--dp",
      "--tp",
      "--tp-chunks",
      "--sequence-parallel",
      "--pp",
      "--cp",
      "--cp-mode",
      "--cp-ulysses",
      "--init",
      "--init-address",
      "--init-folder",
      "--init-timeout",
      "--processes",
      "--process-rank",
      "--gpus-per-node",
      "--peer-timeout",
      "--stall-timeout",
      "--check-collectives"}},
    {Verb::export_model,
     "export",
     "Writes a model for other programs: as a Hugging Face folder, or as an llm.c model file.",
     {"--model", "--to", "--output", "--dtype", "--tokenizer"}},
    {Verb::check,
     "check",
     "Looks whether a run with the same options can begin and go on to its end; nothing is trained or written.",
     {}},
};

// Options that training does not take.
const std::vector<std::string> kNotOfTraining{"--tokenizer", "--prompt",      "--prompt-file", "--tokens", "--top-k",
                                              "--top-p",     "--stop-at-end", "--to",          "--output", "--dtype"};

// What an option means to a verb other than training, where that differs.
struct OwnWords {
    Verb verb;
    const char *option, *words;
};
constexpr const char* kModel =
    "a checkpoint, the output folder of a run (its newest checkpoint), a Hugging Face folder or an llm.c model file";
constexpr OwnWords kOwnWords[] = {
    {Verb::generate, "--model", kModel},
    {Verb::evaluate, "--model", kModel},
    {Verb::export_model, "--model", kModel},
    {Verb::generate, "--seed", "the same seed draws the same text"},
    {Verb::evaluate, "--data",
     "what data/NAME.sh has prepared (local, tinyshakespeare, ...), or a folder: stands for --val-data "
     "'FOLDER/*val*.bin'"},
    {Verb::evaluate, "--val-data", "token files to measure on, a pattern (quote it)"},
    {Verb::evaluate, "--vocab-size", "ids of the model, where it is meant to have more than the data's tokenizer"},
    {Verb::evaluate, "--hellaswag", "answer multiple-choice questions"},
    {Verb::evaluate, "--seq-len", "tokens of a sequence, T; by default the model's positions"},
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// A name in the lists above that is no option would be passed over without a word.
void check_names(const CLI::App& app) {
    auto check = [&app](const std::string& name) { ENSURE(app.get_option_no_throw(name), name, " is no option"); };
    for (const VerbInfo& verb : kVerbs) std::ranges::for_each(verb.options, check);
    std::ranges::for_each(kNotOfTraining, check);
    for (const OwnWords& own : kOwnWords) check(own.option);
}

const VerbInfo& info_of(Verb verb) { return *std::ranges::find(kVerbs, verb, &VerbInfo::verb); }

}   // namespace

const char* name_of(Verb verb) { return info_of(verb).name; }

bool asks_for_steps(int argc, const char* const* argv) {
    auto is = [&](Verb verb) { return argc > 1 && std::string(argv[1]) == name_of(verb); };
    return !is(Verb::generate) && !is(Verb::export_model);
}

Verb take_verb(std::vector<std::string>& arguments) {
    if (arguments.empty() || arguments[0].starts_with("-")) return Verb::train;
    const std::string given = arguments[0];
    const auto found = std::ranges::find_if(kVerbs, [&](const VerbInfo& verb) { return given == verb.name; });
    if (found == kVerbs.end()) {
        std::string known;
        for (const VerbInfo& verb : kVerbs) known += text(known.empty() ? "" : ", ", verb.name);
        throw Error(ErrorKind::usage, text(given, ": unknown verb, expected one of ", known, ", or none to train"),
                    "Options begin with --; `train_gpt VERB --help` lists those of a verb.");
    }
    arguments.erase(arguments.begin());
    return found->verb;
}

std::vector<std::string> keep_options_of(Verb verb, CLI::App& app) {
    check_names(app);
    const VerbInfo& info = info_of(verb);
    if (verb == Verb::train) {
        std::string others;
        for (const VerbInfo& other : kVerbs) {
            if (other.verb != Verb::train) others += text("\n  train_gpt ", other.name, " --help\n      ", other.what);
        }
        app.footer("Besides training:" + others);
    } else {
        app.name(text("train_gpt ", info.name));
        app.description(info.what);
        if (!takes_options_of_training(verb)) app.set_config();   // no options from a file
    }
    for (const OwnWords& own : kOwnWords) {
        if (own.verb != verb) continue;
        CLI::Option* const option = app.get_option(own.option);
        option->description(own.words);
        if (option->get_single_name() == "seq-len") option->default_str("");
    }
    std::vector<std::string> removed;
    for (CLI::Option* option : app.get_options()) {
        const std::string name = "--" + option->get_single_name();
        const bool taken = takes_options_of_training(verb) ? !contains(kNotOfTraining, name) : contains(info.options, name);
        if (taken || name == "--help" || name == "--version") continue;
        removed.push_back(name);
        app.remove_option(option);
    }
    return removed;
}
