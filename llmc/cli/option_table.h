// Every option of every verb, one row each: names, values, words for --help. The parser, --help, --config,
// --print-config, options.json and what is refused go through the rows. What options mean together is in
// command_line.cpp.
#pragma once

#include <charconv>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/cli/verbs.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/options/options.h"

enum class Picture : std::uint8_t { none, text, svg };
enum class LayoutChoice : std::uint8_t { given, auto_ };

// Values of the options that only the command line itself needs.
struct CommandLineOptions {
    std::string config;   // --config
    bool print_config = false;
    std::string data_name;      // --data, which stands for two patterns
    int llmc_val_batches = 0;   // -m, which counts batches of B sequences where --val-max-batches counts sequences
    LayoutChoice layout = LayoutChoice::given;
    Picture picture = Picture::none;
    std::string costs = "1,1,1,0";   // drawn by --print-schedule
};

struct OptionRow {
    std::string name;      // with dashes
    std::string letters;   // another name: one letter, llm.c's two, or a long one: "-l", "-nk", "--eval"; empty: none
    std::string type, group, words;
    std::function<std::string()> spell{};                   // returns the value as files and --help have it
    std::function<bool(const std::string& value)> read{};   // false: the value is invalid
    std::string expected{};                                 // told about an invalid value
    std::string hint = "`train_gpt --help` lists every option.";
    bool is_switch = false;      // without a value it means 1
    bool in_files = true;        // --config and options.json may have it
    bool of_one_start = false;   // belongs to one start, not to the run: where it runs, how it is told to end
    // Says when something reads the option: each of these conditions holds, that is one of its cases does. Where
    // nothing reads it, a resumed run leaves its record's value out, and a value that is given is refused, unless it
    // may idle.
    struct Case {
        std::string option, value;
        bool equal;   // false: the option has another value
    };
    using Condition = std::vector<Case>;
    std::vector<Condition> read_if{};
    bool may_idle = false;   // layouts and optimizers are tried in turn, with all their options

    OptionRow& llmc(const char* its_letters) { return letters = its_letters, *this; }
    OptionRow& typed(const char* words_for_type) { return type = words_for_type, *this; }
    OptionRow& not_in_files() { return in_files = false, *this; }
    OptionRow& of_start() { return of_one_start = true, *this; }
    OptionRow& with(const char* option, std::initializer_list<const char*> values) {   // one of them
        Condition& cases = read_if.emplace_back();
        for (const char* value : values) cases.push_back({option, value, true});
        return *this;
    }
    OptionRow& idle() { return may_idle = true, *this; }
    OptionRow& unless(const char* option, const char* value) { return unless_all({{option, value}}); }
    OptionRow& unless_all(std::initializer_list<std::pair<const char*, const char*>> values) {   // have them
        Condition& cases = read_if.emplace_back();
        for (const auto& [option, value] : values) cases.push_back({option, value, false});
        return *this;
    }
};

class OptionTable {
public:
    // Builds the options that a verb takes. They write to `options` and `beside`, which must outlive the table.
    OptionTable(Verb verb, Options& options, CommandLineOptions& beside);

    const std::vector<OptionRow>& rows() const { return rows_; }
    const OptionRow* find(const std::string& flag) const;   // by any of its names; null: there is none

    // Returns what must be given for something to read the option, as in "--optimizer muon"; empty: something does.
    // `value_of`: the values of options.
    std::string lacks(const OptionRow& row, const std::function<std::string(const OptionRow&)>& value_of) const;

private:
    void add_options_of_models(Options& o, CommandLineOptions& beside);
    void add_options_of_training(Options& o, CommandLineOptions& beside);
    void add_options_of_many(Options& o, CommandLineOptions& beside);
    void add_options_of_verbs(GenerateOptions& g, ExportOptions& e);
    void add_options_of_plan(Options& o);

    // Sets which verbs take the rows that follow. `data` and `plan` take what `check` takes.
    template <class... Verbs>
    void taken_by(Verbs... verbs) {
        is_taken_ = ((verbs == verb_) || ...) ||
                    ((verb_ == Verb::data || verb_ == Verb::plan) && ((verbs == Verb::check) || ...));
    }
    // Adds a row, as all below do. `names`: the long name, and another one (OptionRow::letters).
    OptionRow& row(const std::string& names, const std::string& type, const std::string& words);
    // Adds an option that this program accepts only with the value `only`; `instead` says what serves it better.
    OptionRow& elsewhere(const std::string& name, const std::string& only, const std::string& words,
                         const std::string& instead);

    OptionRow& string(const std::string& names, std::string& target, const std::string& words) {
        OptionRow& added = row(names, "TEXT", words);
        added.spell = [&target] { return target; };
        added.read = [&target](const std::string& value) { return target = value, true; };
        return added;
    }

    template <class Number>
    OptionRow& number(const std::string& names, Number& target, std::type_identity_t<Number> low,
                      std::type_identity_t<Number> high, const std::string& words) {
        constexpr bool whole = std::is_integral_v<Number>;
        OptionRow& added = row(names, whole ? "INT" : "FLOAT", words);
        added.expected = text("expected ", whole ? "an integer" : "a number", " from ", low, " to ", high);
        added.spell = [&target] {   // as few digits as read back to the same value: 0.0003, not 0.000300000014
            char digits[32];
            return std::string(digits, std::to_chars(digits, digits + sizeof digits, target).ptr);
        };
        added.read = [&target, low, high](const std::string& value) {
            Number parsed{};
            const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), parsed);
            if (code != std::errc{} || end != value.data() + value.size()) return false;
            if (!(parsed >= low && parsed <= high)) return false;   // nan too
            target = parsed;
            return true;
        };
        return added;
    }

    template <class Value>
    OptionRow& choice(const std::string& names, Value& target, const std::string& words) {
        OptionRow& added = row(names, names_of<Value>(), words);
        added.expected = "expected one of " + added.type;
        added.spell = [&target] { return std::string(name_of(target)); };
        added.read = [&target](const std::string& value) {
            for (const EnumName<Value>& known : EnumNames<Value>::list) {
                if (value == known.name) return target = known.value, true;
            }
            return false;
        };
        added.is_switch = std::is_same_v<Value, bool>;
        return added;
    }

    // Adds a field of the model. An empty value means that it is not given.
    OptionRow& field(const ModelField& of, ModelChoices& target) {
        std::string values;
        for (const char* value : of.values) values += text(values.empty() ? "" : "|", value);
        OptionRow& added = row(text("--", of.name),
                               of.letters != nullptr ? "TEXT"
                               : of.is_number()      ? of.whole ? "INT" : "FLOAT"
                                                     : values,
                               of.help);
        added.expected = of.letters != nullptr ? text("expected at most ", longest_pattern, " letters ", of.letters[0],
                                                      " and ", of.letters[1])
                         : of.is_number() ? text("expected ", of.whole ? "an integer" : "a number", " from 0 to 1e9")
                                          : "expected one of " + values;
        added.spell = [&of, &target] {
            ModelConfig model;
            if (!target.contains(of.name)) return std::string();
            of.set(model, target.at(of.name));
            return of.value_of(model);
        };
        added.read = [&of, &target](const std::string& value) {
            ModelConfig model;
            if (value.empty()) return target.erase(of.name), true;
            return of.read(model, value) && (target[of.name] = of.get(model), true);
        };
        added.is_switch = of.is_flag();
        return added;
    }

    Verb verb_;
    bool is_taken_ = true;
    std::string group_;   // the title that --help has above the rows that follow
    std::vector<OptionRow> rows_;
    OptionRow untaken_;
};
