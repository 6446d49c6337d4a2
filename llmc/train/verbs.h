// What the program is asked to do: `train_gpt VERB --option ...`; without a verb it trains.
//
// All verbs share one table of options (option_table.cpp). Each takes some of them, named here; the others are unknown to it
// and left out of its `--help`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/dtype.h"

namespace CLI {
class App;
}

enum class Verb { train, generate, evaluate, export_model, check };

// Whether a verb takes the options of training, with their meanings.
constexpr bool takes_options_of_training(Verb verb) { return verb == Verb::train || verb == Verb::check; }

// What only `generate` asks.
struct GenerateOptions {
    std::string prompt, prompt_file;   // at most one of them; neither: what follows an end-of-text token
    std::string tokenizer;             // empty: the one beside the model
    int tokens = 100;
    int top_k = 0;   // 0: all
    float top_p = 1.0f;
    bool stop_at_end = true;   // at the tokenizer's end-of-text token
};

// What only `export` asks.
enum class ExportFormat { hugging_face, llmc };
struct ExportOptions {
    ExportFormat to = ExportFormat::hugging_face;
    std::string output;           // a folder, or llm.c's model file
    std::optional<DType> dtype;   // none: as the model's file has it
};

// Takes the verb off the front of the arguments. Error(usage) naming the known ones where it is none of them.
Verb take_verb(std::vector<std::string>& arguments);

// Of the program's own arguments: whether they ask for steps, after which a run can be stopped. The others end at once.
bool asks_for_steps(int argc, const char* const* argv);

const char* name_of(Verb verb);

// Gives the parser this verb's name and what its help says, and removes the options that it does not take; returns the
// names of these.
std::vector<std::string> keep_options_of(Verb verb, CLI::App& app);
