// What the program is asked to do: `train_gpt VERB --option ...`; without a verb it trains.
//
// All verbs share one table of options (option_table.cpp). Each takes some of them, named here; the others are unknown to it
// and left out of its `--help`.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

enum class Verb { train, generate, evaluate, export_model, check };

// Whether a verb takes the options of training, with their meanings.
constexpr bool takes_options_of_training(Verb verb) { return verb == Verb::train || verb == Verb::check; }

// Takes the verb off the front of the arguments. Error(usage) naming the known ones where it is none of them.
Verb take_verb(std::vector<std::string>& arguments);

// Of the program's own arguments: whether they ask for steps, after which a run can be stopped. The others end at once.
bool asks_for_steps(int argc, const char* const* argv);

const char* name_of(Verb verb);

// Gives the parser this verb's name and what its help says, and removes the options that it does not take; returns the
// names of these.
std::vector<std::string> keep_options_of(Verb verb, CLI::App& app);
