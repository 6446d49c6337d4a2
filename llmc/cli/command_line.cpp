#include "llmc/cli/command_line.h"
#include "llmc/io/json_file.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "llmc/base/printable.h"
#include "llmc/base/refuse.h"
#include "llmc/base/utf8.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cli/auto_options.h"
#include "llmc/cli/named_data.h"
#include "llmc/cli/option_faults.h"
#include "llmc/cli/option_table.h"
#include "llmc/cli/version.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/named_models.h"
#include "llmc/parallel/schedule_picture.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/options/sync_options.h"
#include "llmc/run/step/step_sizes.h"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Checks across options

constexpr const char* kHelp = "`train_gpt --help` lists every option.";
// First and last line of what --print-config prints.
constexpr const char *kBegin = "# options of train_gpt", *kEnd = "# end of the options";

void check_together(const Options& o) {
    const int own_sizes = (o.layers > 0) + (o.heads > 0) + (o.channels > 0);
    refuse_if(own_sizes != 0 && own_sizes != 3, text("--layers ", o.layers, " --heads ", o.heads, " --channels ",
                                                     o.channels, ": expected all three of them or none"));
    refuse_if(own_sizes == 3 && o.model != Options{}.model,
              text("--model ", o.model, " together with --layers, --heads and --channels"),
              "Give either a model or sizes of your own.");
    refuse_if(!o.arch.empty() && (own_sizes > 0 || o.model != Options{}.model),
              text("--arch ", o.arch, " together with --model, --layers, --heads or --channels"),
              "Each of them says what the model is: give one.");
    ModelConfig requested;
    apply(o.architecture, requested);
    const std::string beyond = beyond_llmc(requested);
    refuse_if(!beyond.empty() && !o.export_llmc.empty(), "--export-llmc together with " + beyond,
              "llm.c's files hold no such model; checkpoints do.");
    refuse_if(o.force_balance && !o.output_dir.empty(), "--force-balance 1 together with --output-dir",
              "Tokens that go to experts in turn only measure time: a run to be kept must route by its router.");
    check_total_batch(o);
    check_layout(o);
    asked_evaluations(o);
    refuse_if(o.max_steps > 0 && o.decay_steps > 0 && o.decay_steps > o.max_steps - o.warmup,
              text("--decay-steps ", o.decay_steps,
                   ": expected at most --max-steps less --warmup = ", o.max_steps - o.warmup),
              kHelp);
    refuse_if(o.resume && o.overwrite, "--resume together with --overwrite",
              "Give --resume to continue the run in --output-dir, --overwrite to remove it.");
    refuse_if(o.max_steps == 0, "--max-steps 0: expected -1 or an integer from 1 to 2147483647", kHelp);
    refuse_if(o.max_steps > 0 && o.warmup > o.max_steps,
              text("--warmup ", o.warmup, ": expected at most --max-steps = ", o.max_steps), kHelp);
    refuse_if(o.val_max_batches == 0,
              "--val-max-batches 0: expected -1 or at least 1 (--val-every 0 turns validation off)", kHelp);
}

// Returns the positions of the model that a run starts from; none where it cannot be read, which the run will report.
std::optional<std::int64_t> positions_of_model(const Options& o) {
    const FileSystem& files = real_files();
    try {
        if (!o.arch.empty()) return read_hugging_face_config(read_json_file(files, o.arch), o.arch).max_seq_len;
        if (is_descriptor(o.model)) return model_config(o.model).max_seq_len;
        const bool is_run = files.exists(o.model + "/.") && !files.exists(o.model + "/config.json");
        const std::vector<std::string> saved = is_run ? glob_files(o.model + "/step_????????") : std::vector{o.model};
        if (!saved.empty()) return open_weights(files, saved.back(), o.ignore_tensors)->config().max_seq_len;
    } catch (const std::exception&) {
    }
    return std::nullopt;
}

// Clears the defaults of training, for verbs that need a model and data by name.
void set_defaults_of(Verb verb, Options& o) {
    o.model.clear();
    o.val_data.clear();
    o.val_max_batches = -1;
    if (verb == Verb::evaluate) o.seq_len = 0;   // the model's positions
}

void check_verb(Verb verb, const Options& o) {
    refuse_if(o.model.empty(), text(program_of(verb), " without --model"),
              "Give a checkpoint, the output folder of a run, a Hugging Face folder or an llm.c model file.");
    refuse_if(!o.generate.prompt.empty() && !o.generate.prompt_file.empty(), "--prompt together with --prompt-file",
              "Give one of them.");
    refuse_if(verb == Verb::export_model && o.exported.output.empty(), "train_gpt export without --output",
              "Say where to write the model.");
    refuse_if(verb != Verb::evaluate && read_launch_environment().ranks > 1,
              text(program_of(verb), " among several processes"), "Start it as one process.");
    if (verb != Verb::evaluate) return;
    refuse_if(o.val_data.empty() && asked_evaluations(o).empty(),
              "train_gpt evaluate without --val-data, --data and --hellaswag or --evaluate",
              "Say what to measure the model on.");
    refuse_if(o.val_max_batches == 0, "--val-max-batches 0: expected -1 or at least 1", kHelp);
    check_layout(o);
}

// ---------------------------------------------------------------------------------------------------------------------
// Who gives an option its value

struct Given {
    std::string value;
    std::string where{};        // prefix of messages about it
    bool is_recorded = false;   // read from the options.json of the run to resume
};
using AllGiven = std::map<std::string, Given>;   // by the option's name

// Breaks text into lines of at most 90 characters, which with the margin of --help fit 120 columns.
std::string in_lines(const std::string& words) {
    std::string lines;
    std::size_t begin = 0;   // begin of the current line
    while (words.size() - begin > 90) {
        const std::size_t end = words.rfind(' ', begin + 90);
        lines += words.substr(begin, end - begin) + "\n";
        begin = end + 1;
    }
    return lines + words.substr(begin);
}

// Adds the verb's options to the parser, which writes what it finds into `given`. Defaults are the options' current
// values.
void add_options(CLI::App& app, Verb verb, const OptionTable& table, AllGiven& given) {
    app.set_help_flag("--help", "print this and exit")->group("General");
    for (const OptionRow& row : table.rows()) {
        const bool is_letter = row.letters.size() == 2 && row.letters != "-h";   // the parser knows no two letters
        const bool has_other = is_letter || row.letters.starts_with("--");
        app.add_option_function<std::string>(
               has_other ? row.name + "," + row.letters : row.name,
               [&given, &row](const std::string& value) { given[row.name] = {value}; }, in_lines(row.words))
            ->group(row.group)
            ->default_str(row.group == "General" ? "" : row.spell())
            ->type_name(row.type)
            ->configurable(row.in_files)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);   // scripts override what they were given
    }
    app.set_version_flag("--version", version_text(), "print which version this is, and exit")->group("General");
    if (verb == Verb::train) app.footer(list_of_verbs());
}

// Returns what --print-config prints, with or without the help of each option.
std::string config_text(Verb verb, const OptionTable& table, bool with_words) {
    AllGiven none;
    CLI::App app(words_of(verb), program_of(verb));
    add_options(app, verb, table, none);
    return text(kBegin, "\n", app.config_to_str(true, with_words), kEnd, "\n");
}

// Replaces llm.c's names by today's, because the parser knows only those of one letter. Gives switches that stand alone
// the value 1, because the parser would give them their default.
std::vector<std::string> for_parser(const OptionTable& table, std::vector<std::string> arguments) {
    if (!arguments.empty() && arguments.back() == "-h") arguments.back() = "--help";   // with a value it is HellaSwag
    std::vector<std::string> result;
    for (std::size_t i = 0; i < arguments.size(); i++) {
        const OptionRow* const row = table.find(arguments[i]);
        result.push_back(row != nullptr ? row->name : arguments[i]);
        const bool alone = i + 1 == arguments.size() || arguments[i + 1].starts_with("-");
        if (row != nullptr && row->is_switch && alone) result.push_back("1");
    }
    std::ranges::reverse(result);   // the parser takes them from the back
    return result;
}

// Returns the options given on the command line. `print` gets the help or the version, if it asks for them.
AllGiven given_by_arguments(Verb verb, const OptionTable& table, std::vector<std::string> arguments, std::string& print,
                            std::vector<std::string>& warnings) {
    AllGiven given;
    CLI::App app(words_of(verb), program_of(verb));
    add_options(app, verb, table, given);
    try {
        app.parse(for_parser(table, std::move(arguments)));
    } catch (const CLI::CallForHelp&) {
        print = app.help();
    } catch (const CLI::CallForVersion&) {
        print = version_text() + "\n";
    } catch (const CLI::ExtrasError&) {
        throw_unused_argument(verb, table, app.remaining().front());
    } catch (const CLI::ParseError& error) {
        throw Error(ErrorKind::usage, error.what(), kHelp);
    }
    for (const auto& [name, wins] : given) {
        for (const std::string& value : app.get_option(name)->results()) {
            if (value != wins.value)
                warnings.push_back(text(name, " ", value, ": ignored, for ", wins.value, " follows"));
        }
    }
    return given;
}

constexpr std::size_t kLongestLine = 16384;   // in --config, because the parser's time grows with the square
constexpr std::size_t kLargestConfig = std::size_t{1} << 20;   // bytes: all options with long values are a tenth
constexpr const char* kBlanks = " \t\r";

// Returns true for a line of --config that is empty or a comment.
bool says_nothing(const std::string& line) {
    const std::size_t begin = line.find_first_not_of(kBlanks);
    return begin == line.npos || line[begin] == '#' || line[begin] == ';';
}

// Returns what of a line's value begins and does not end, "a quote" or "a list"; else null. The parser would take what
// is there for the value, less its last character where that is a list's.
const char* left_open(const std::string& line) {
    const std::size_t equals = line.find('=');
    const std::string to_comment = line.substr(0, line.find('#'));
    const std::size_t begin = equals == line.npos ? line.npos : to_comment.find_first_not_of(kBlanks, equals + 1);
    if (begin == line.npos) return nullptr;
    const char mark = line[begin];
    if (mark == '[') return to_comment[to_comment.find_last_not_of(kBlanks)] == ']' ? nullptr : "a list";
    if (mark != '"' && mark != '\'' && mark != '`') return nullptr;
    const bool is_triple = line.compare(begin, 3, std::string(3, mark)) == 0;   // TOML's text of several lines
    return is_triple || line.find(mark, begin + 1) == line.npos ? "a quote" : nullptr;
}

// Returns the options in the file of --config, which may be a pipe. Error(usage) where it is empty or was cut: each
// line must have its end, an option is there once, and a file that --print-config has written must have its last line.
AllGiven given_by_file(const OptionTable& table, const std::string& path) {
    const std::string content = read_small_or_pipe(path, "--config");
    refuse_if(content.size() > kLargestConfig,
              text("--config ", path, ": ", content.size(), " bytes, expected at most ", kLargestConfig),
              "Is this another file?");
    std::istringstream file(content);
    AllGiven given;
    std::string line, last;
    bool is_printed = false;
    for (int number = 1; std::getline(file, line); number++, last = line) {
        const std::string where = text("--config ", path, ": line ", number, ": ");
        refuse_if(file.eof(), where + "has no line end", "Was the file cut? If not, end its last line.");
        refuse_if(line.size() > kLongestLine, text(where, line.size(), " bytes, expected at most ", kLongestLine),
                  "Is this another file?");
        is_printed = is_printed || line == kBegin;
        if (says_nothing(line)) continue;
        if (const char* const what = left_open(line)) {
            throw Error(ErrorKind::usage, text(where, what, " is not closed"),
                        "End the value with the quote or bracket it begins with.");
        }
        std::istringstream alone(line);
        const bool is_section = line[line.find_first_not_of(kBlanks)] == '[';
        const std::vector<CLI::ConfigItem> items =
            is_section ? std::vector<CLI::ConfigItem>{} : CLI::ConfigTOML().from_config(alone);
        refuse_if(items.empty(), text(where, "'", line.substr(0, 80), "' is not a name and a value"),
                  "A line is as in: lr = 0.001");
        for (const CLI::ConfigItem& item : items) {
            const std::string name = item.parents.empty() ? item.name : line;   // sections have parents
            const OptionRow* const row = table.find((name.size() == 1 ? "-" : "--") + name);
            if (row == nullptr) throw_unknown_option(table, "--" + name, where);
            if (!row->in_files) {
                throw Error(ErrorKind::usage, text(where, "--", name, ": only on the command line"),
                            "Remove this line.");
            }
            refuse_if(item.inputs.size() != 1,
                      text(where, row->name, ": ", item.inputs.size(), " values, expected one"), kHelp);
            refuse_if(!given.emplace(row->name, Given{item.inputs.back(), where}).second,
                      text(where, row->name, ": this option has a line before"), "Remove one of them.");
        }
    }
    refuse_if(given.empty() || (is_printed && last != kEnd),
              text("--config ", path, given.empty() ? ": no option in this file" : ": the end of this file is missing"),
              "Copy it again, or write a new one with `train_gpt --print-config`.");
    return given;
}

// Returns the options of a run's options.json, except those of one start of the program.
AllGiven given_by_record(const OptionTable& table, const std::vector<OptionText>& options, const std::string& folder) {
    AllGiven given;
    const std::string where = folder + "/options.json: ";
    for (const OptionText& option : options) {
        const OptionRow* const row = table.find("--" + option.name);
        if (row == nullptr) {
            throw Error(ErrorKind::bad_data, text(where, "--", option.name, ": unknown option"),
                        "Resume with the program that began the run, or remove the file and give all options.");
        }
        if (!row->of_one_start) given[row->name] = {option.value, where, true};
    }
    return given;
}

// Leaves out what is given anew, and the numbers of the recorded --rope-scaling where another scaling is given.
void leave_out_replaced(AllGiven& recorded, const AllGiven& given) {
    const auto scaling = given.find("--rope-scaling");
    if (scaling != given.end() && scaling->second.value != recorded["--rope-scaling"].value) {
        for (const ModelField& field : model_fields()) {
            if (!field.of_scalings.empty()) recorded.erase(text("--", field.name));
        }
    }
    for (const auto& [name, wins] : given) recorded.erase(name);
}

// Leaves out recorded options that nothing reads, because what they belong to is off now. Repeats: an option that goes
// may be what others belong to.
void leave_out_unused(const OptionTable& table, AllGiven& recorded) {
    const auto value_of = [&](const OptionRow& row) {
        const auto found = recorded.find(row.name);
        return found != recorded.end() ? found->second.value : row.spell();
    };
    const auto is_unused = [&](const auto& option) {
        return !table.lacks(*table.find(option.first), value_of).empty();
    };
    while (std::erase_if(recorded, is_unused) > 0) continue;
}

// Gives --data's folder to those of the two options that are not given beside it.
AllGiven given_by_name(const OptionTable& table, const std::string& name) {
    const bool trains = table.find("--train-data") != nullptr;
    const std::string found = find_named_data(name, trains ? "train" : "val");
    AllGiven given{{"--val-data", {found}}};
    if (trains) given["--train-data"] = {found};
    return given;
}

void set(const OptionRow& row, const Given& given) {
    refuse_if(valid_utf8_prefix(given.value) != given.value.size(),   // options.json and metrics could not say it
              text(given.where, row.name, " ", printable(given.value), ": not UTF-8"), "Give another name.");
    if (row.read(given.value)) return;
    const std::string wrong =
        text(given.where, row.name, " ", given.value.empty() ? "(empty)" : given.value, ": ", row.expected);
    if (!given.is_recorded) throw Error(ErrorKind::usage, wrong, row.hint);
    throw Error(ErrorKind::bad_data, wrong, "Restore the file from a copy, or remove it and give all options.");
}

void set_all(const OptionTable& table, const AllGiven& given) {
    for (const OptionRow& row : table.rows()) {
        if (const auto found = given.find(row.name); found != given.end()) set(row, found->second);
    }
}

// Refuses --resume without an options.json that names no model, or no data for its checkpoints: the defaults would be
// taken for a run that is elsewhere. `why_not`: the errno of reading the file.
void check_begins(const Options& o, const AllGiven& given, int why_not) {
    const std::string where = text("--resume: ", o.output_dir, "/options.json: ", std::strerror(why_not));
    if (why_not != ENOENT) throw Error(ErrorKind::io, where, "Check --output-dir and its permissions.");
    const auto is_named = [&](const char* name) { return given.contains(name); };
    refuse_if(std::ranges::none_of(std::array{"--model", "--layers", "--arch"}, is_named),
              where + ", and no model is named",
              "Check --output-dir; to begin a run there, or to continue one without this file, name its model.");
    refuse_if(!list_checkpoints(real_files(), o.output_dir).empty() && !is_named("--train-data"),
              where + ", and no data are named",
              "Restore the file; or to continue the run without it, give all its options, --train-data among them.");
}

// Returns the options of every start of a run, each with what is given now in place of what was then.
std::vector<CommandLine::Start> starts_of(Verb verb, const RunRecord& record, const std::string& folder,
                                          const AllGiven& given) {
    std::vector<CommandLine::Start> starts;
    for (const OptionsOfStart& start : history_of(record, folder + "/options.json")) {
        Options options;
        CommandLineOptions beside;
        const OptionTable table(verb, options, beside);
        AllGiven all = given;
        all.merge(given_by_record(table, start.options, folder));
        set_all(table, all);
        if (options.dp == 0) {   // it was what the processes left; where the layout is another one now, at least 1
            const std::int64_t ranks_of_model = std::int64_t{options.pp} * options.cp * options.tp;
            options.dp = static_cast<int>(std::max<std::int64_t>(1, start.processes / ranks_of_model));
        }
        starts.push_back({start.after_step, options});
    }
    return starts;
}

// Returns the folder of the run; `branch_from` is this folder, or one of its checkpoints.
std::string folder_of_run(const std::string& branch_from) {
    const std::filesystem::path path = std::filesystem::path(branch_from + "/").parent_path();
    return std::filesystem::exists(path / "run.json") ? path.parent_path().string() : path.string();
}

// Returns the options that files may have.
std::vector<OptionText> texts_of(const OptionTable& table, const OptionTable& by_default) {
    std::vector<OptionText> texts;
    for (const OptionRow& row : table.rows()) {
        if (!row.in_files) continue;
        const std::string value = row.spell();
        texts.push_back({row.name.substr(2), value, row.of_one_start, value == by_default.find(row.name)->spell()});
    }
    return texts;
}

// Refuses values other than defaults that nothing reads, because what they belong to is not given.
void check_all_are_read(const OptionTable& table, const OptionTable& by_default, const AllGiven& given) {
    for (const OptionRow& row : table.rows()) {
        if (row.may_idle || !given.contains(row.name) || row.spell() == by_default.find(row.name)->spell()) continue;
        const std::string lacking = table.lacks(row, [](const OptionRow& other) { return other.spell(); });
        refuse_if(!lacking.empty(),
                  text(row.name, row.is_switch && row.spell() == "1" ? "" : " " + row.spell(), " without ", lacking),
                  text("Give ", lacking, ", or leave ", row.name, " out."));
    }
}

// Draws the schedule that --print-schedule asks for, with the ranks that there are or shall be.
std::string picture_of(Options o, const CommandLineOptions& beside) {
    const int ranks = o.startup.ranks > 0 ? o.startup.ranks : read_launch_environment().ranks;
    if (o.dp == 0) o.dp = static_cast<int>(std::max<std::int64_t>(1, ranks / (std::int64_t{o.pp} * o.cp * o.tp)));
    check_together(o);
    check_micro_batches(o);
    const DrawnCosts drawn = drawn_costs_from(beside.costs);
    return beside.picture == Picture::svg ? schedule_svg(pipeline_shape(o), drawn)
                                          : schedule_text(pipeline_shape(o), drawn);
}

}   // namespace

CommandLine parse_command_line(std::vector<std::string> arguments) {
    CommandLine result;
    const Verb verb = result.verb = take_verb(arguments);
    const bool trains = takes_options_of_training(verb);
    Options& o = result.options;
    if (!trains) set_defaults_of(verb, o);
    CommandLineOptions beside;
    const OptionTable table(verb, o, beside);
    AllGiven given = given_by_arguments(verb, table, std::move(arguments), result.print_and_exit, result.warnings);
    if (!result.print_and_exit.empty()) return result;
    const bool names_model = given.contains("--model");

    const bool counts_micro_batches = given.contains("--val-max-micro-batches") && !given.contains("--val-max-batches");
    // merge() keeps what is there already
    if (given.contains("--data")) given.merge(given_by_name(table, given["--data"].value));
    if (given.contains("--config")) given.merge(given_by_file(table, given["--config"].value));
    set_all(table, given);
    Options default_options;
    CommandLineOptions default_beside;
    if (!trains) set_defaults_of(verb, default_options);
    const OptionTable by_default(verb, default_options, default_beside);
    if (!trains) {
        check_all_are_read(table, by_default, given);
        check_verb(verb, o);
        result.shared = config_text(verb, table, false);
        return result;
    }
    int why_not = 0;   // errno, where there is no record
    std::string recorded_in = o.output_dir;
    if (o.resume && !o.output_dir.empty()) {
        result.recorded = read_run_record(real_files(), recorded_in);
        why_not = errno;
    }
    if (!result.recorded && !o.branch_from.empty()) {
        recorded_in = folder_of_run(o.branch_from);
        result.recorded = read_run_record(real_files(), recorded_in);
    }
    if (result.recorded) {
        AllGiven all = given_by_record(table, result.recorded->options, recorded_in);
        leave_out_replaced(all, given);
        leave_out_unused(table, all);
        set_all(table, all);
    }
    if (!given.contains("--seq-len") && !result.recorded && (names_model || given.contains("--arch"))) {
        o.seq_len = static_cast<int>(positions_of_model(o).value_or(o.seq_len));
    }
    for (const auto& [name, value] : given) o.plan.kept.insert(name);
    if (verb == Verb::plan && o.vocab_size == 0 && o.layers == 0 && o.arch.empty()) {
        o.vocab_size = static_cast<int>(published_vocabulary(o.model));
    }
    const bool size_is_open = o.micro_batch == kAutoMicroBatch || !given.contains("--micro-batch");
    const bool searches = o.plan.search || o.plan.deadline > 0;
    if (verb == Verb::plan && searches && size_is_open) {   // the search chooses it
        o.plan.kept.erase("--micro-batch");
        o.micro_batch = 1;
    }
    check_predicted(o, verb == Verb::plan, beside.layout == LayoutChoice::auto_);
    result.chosen = settle_auto_options(verb, o, beside.layout == LayoutChoice::auto_,
                                        [&](const char* name) { return given.contains(name); });
    if (counts_micro_batches) {
        const std::int64_t sequences = std::int64_t{beside.llmc_val_batches} * o.micro_batch;
        o.val_max_batches = sequences < 0 ? -1 : static_cast<int>(std::min<std::int64_t>(sequences, INT32_MAX));
    }
    check_all_are_read(table, by_default, given);
    check_together(o);
    if (verb == Verb::data && result.recorded) result.starts = starts_of(verb, *result.recorded, recorded_in, given);
    if (verb == Verb::data && result.starts.empty()) result.starts = {{0, o}};
    if (o.resume && !result.recorded) check_begins(o, given, why_not);
    refuse_if(names_model && o.layers > 0, text("--model ", o.model, " together with --layers, --heads and --channels"),
              "Give either a model or sizes of your own.");
    result.shared = config_text(verb, table, false);
    result.texts = texts_of(table, by_default);
    if (beside.picture != Picture::none) result.print_and_exit = picture_of(o, beside);
    if (beside.print_config) result.print_and_exit = config_text(verb, table, true);
    return result;
}
