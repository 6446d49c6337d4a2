#include "llmc/cli/verbs.h"

#include "llmc/base/error.h"

const char* words_of(Verb verb) {
    static constexpr const char* words[]{
        "Pretrains GPT models.",
        "Writes text with a model: after a prompt, token by token.",
        "Measures a model: its loss on validation data, and the multiple-choice questions that it answers right.",
        "Writes a model for other programs: as a Hugging Face folder, or as an llm.c model file.",
        "Looks whether a run with the same options can begin and go on to its end; nothing is trained or written.",
        "Says what a run with the same options takes: memory, time, money; no device and no data are needed.",
        "Shows what a run with the same options reads: the samples of a step, as text."};
    return words[static_cast<int>(verb)];   // in the enum's order
}

std::string program_of(Verb verb) { return verb == Verb::train ? "train_gpt" : text("train_gpt ", name_of(verb)); }

std::string list_of_verbs() {
    std::string list = "Besides training:";
    for (const auto& [name, verb] : EnumNames<Verb>::list) {
        if (verb != Verb::train) list += text("\n  ", program_of(verb), " --help\n      ", words_of(verb));
    }
    return list;
}

bool asks_for_steps(int argc, const char* const* argv) {
    auto is = [&](Verb verb) { return argc > 1 && std::string(argv[1]) == name_of(verb); };
    return !is(Verb::generate) && !is(Verb::export_model) && !is(Verb::data) && !is(Verb::plan);
}

Verb take_verb(std::vector<std::string>& arguments) {
    if (arguments.empty() || arguments[0].starts_with("-")) return Verb::train;
    std::string known;
    for (const auto& [name, verb] : EnumNames<Verb>::list) {
        if (arguments[0] == name) {
            arguments.erase(arguments.begin());
            return verb;
        }
        known += text(name, ", ");
    }
    throw Error(ErrorKind::usage, text(arguments[0], ": unknown verb, expected one of ", known, "or none to train"),
                "Options begin with --; `train_gpt VERB --help` lists those of a verb.");
}
