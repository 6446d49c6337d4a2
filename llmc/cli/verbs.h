// Verbs of the program: `train_gpt VERB --option ...`; without a verb it trains. option_table.cpp says which options
// each takes.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/enum_names.h"

enum class Verb { train, generate, evaluate, export_model, check, plan, data };

template <>
struct EnumNames<Verb> {
    static constexpr EnumName<Verb> list[]{{"train", Verb::train},       {"generate", Verb::generate},
                                           {"evaluate", Verb::evaluate}, {"export", Verb::export_model},
                                           {"check", Verb::check},       {"plan", Verb::plan},
                                           {"data", Verb::data}};
};

// Returns true if the verb takes the options of training, with their meanings.
constexpr bool takes_options_of_training(Verb verb) {
    return verb == Verb::train || verb == Verb::check || verb == Verb::plan || verb == Verb::data;
}

// Returns the sentence that --help has on a verb.
const char* words_of(Verb verb);
std::string program_of(Verb verb);   // "train_gpt generate"
std::string list_of_verbs();         // the verbs besides training, with their help

// Takes the verb off the front of the arguments. Error(usage) naming the known ones where it is none of them.
Verb take_verb(std::vector<std::string>& arguments);

// Returns true if the program's arguments ask for steps, after which a run can be stopped. Other verbs end at once.
bool asks_for_steps(int argc, const char* const* argv);
