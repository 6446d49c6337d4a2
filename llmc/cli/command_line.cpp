#include "llmc/cli/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/cli/named_data.h"
#include "llmc/cli/option_faults.h"
#include "llmc/cli/option_group.h"
#include "llmc/cli/option_table.h"
#include "llmc/cli/version.h"
#include "llmc/parallel/schedule_picture.h"
#include "llmc/run/layout_options.h"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Checks across options

void check_together(const Options& o) {
    const int own_sizes = (o.layers > 0) + (o.heads > 0) + (o.channels > 0);
    if (own_sizes != 0 && own_sizes != 3) {
        throw Error(ErrorKind::usage, text("--layers ", o.layers, " --heads ", o.heads, " --channels ", o.channels,
                                           ": expected all three of them or none"));
    }
    if (own_sizes == 3 && o.model != Options{}.model) {
        throw Error(ErrorKind::usage, text("--model ", o.model, " together with --layers, --heads and --channels"),
                    "Give either a model or sizes of your own.");
    }
    if (!o.tie_embeddings && !o.export_llmc.empty()) {
        throw Error(ErrorKind::usage, "--export-llmc together with --tie-embeddings 0",
                    "llm.c's files have no classifier of its own; checkpoints are Hugging Face folders.");
    }
    check_total_batch(o);
    check_layout(o);
    if (o.output_dir.empty() && (o.checkpoint_every > 0 || o.resume || o.keep_best || o.tensorboard)) {
        const char* flag = o.resume ? "--resume" : o.keep_best ? "--keep-best" : o.tensorboard ? "--tensorboard" : "--checkpoint-every";
        throw Error(ErrorKind::usage, text(flag, " without --output-dir"),
                    "Say with --output-dir where the results are.");
    }
    if (o.keep_best && o.val_every == 0) {
        throw Error(ErrorKind::usage, "--keep-best together with --val-every 0",
                    "The best state is that of the lowest validation loss.");
    }
    if (o.spike_rewind > 0 && (o.output_dir.empty() || (o.skip_loss_z <= 0 && o.skip_norm_z <= 0))) {
        throw Error(ErrorKind::usage,
                    text("--spike-rewind without ", o.output_dir.empty() ? "--output-dir" : "--skip-loss-z or --skip-norm-z"),
                    "It goes back to a checkpoint where one of these z-scores is too high.");
    }
    if (o.resume && o.overwrite) {
        throw Error(ErrorKind::usage, "--resume together with --overwrite",
                    "Give --resume to continue the run in --output-dir, --overwrite to remove it.");
    }
    if (o.max_steps == 0) throw WrongValue("--max-steps", "0", "-1 or an integer from 1 to 2147483647");
    if (o.max_steps > 0 && o.warmup > o.max_steps) {
        throw WrongValue("--warmup", text(o.warmup), text("at most --max-steps = ", o.max_steps));
    }
    if (o.val_max_batches == 0)
        throw WrongValue("--val-max-batches", "0", "-1 or at least 1 (--val-every 0 turns validation off)");
}

// Verbs work with a model that there is, on data that is named.
void set_defaults_of_verbs(Options& o) {
    o.model.clear();
    o.val_data.clear();
    o.val_max_batches = -1;
}

void check_verb(Verb verb, const Options& o) {
    if (o.model.empty()) {
        throw Error(ErrorKind::usage, text("train_gpt ", name_of(verb), " without --model"),
                    "Give a checkpoint, the output folder of a run, a Hugging Face folder or an llm.c model file.");
    }
    if (!o.generate.prompt.empty() && !o.generate.prompt_file.empty()) {
        throw Error(ErrorKind::usage, "--prompt together with --prompt-file", "Give one of them.");
    }
    if (verb == Verb::export_model && o.exported.output.empty()) {
        throw Error(ErrorKind::usage, "train_gpt export without --output", "Say where to write the model.");
    }
    if (verb != Verb::evaluate) {
        if (read_launch_environment().ranks <= 1) return;
        throw Error(ErrorKind::usage, text("train_gpt ", name_of(verb), " among several processes"),
                    "Start it as one process.");
    }
    if (o.val_data.empty() && !o.hellaswag) {
        throw Error(ErrorKind::usage, "train_gpt evaluate without --val-data, --data and --hellaswag",
                    "Say what to measure the model on.");
    }
    if (o.val_max_batches == 0) throw WrongValue("--val-max-batches", "0", "-1 or at least 1");
    check_layout(o);
}

}   // namespace

std::vector<std::string> translate_llmc_flags(std::vector<std::string> arguments) {
    static constexpr std::array<std::pair<const char*, const char*>, 13> kTable{{
        {"-h", "--hellaswag"},
        {"-nk", "--keep-checkpoints"},
        {"-nm", "--major-checkpoint-every"},
        {"-ge", "--gelu-fusion"},
        {"-sl", "--skip-loss-z"},
        {"-sg", "--skip-norm-z"},
        {"-lg", "--log-gpu-every"},
        {"-pn", "--processes"},
        {"-pr", "--process-rank"},
        {"-pg", "--gpus-per-node"},
        {"-pi", "--init"},
        {"-pf", "--init-folder"},
        {"-ps", "--init-address"},
    }};
    if (!arguments.empty() && arguments.back() == "-h")
        arguments.back() = "--help";   // without a value it asks for help
    for (std::string& argument : arguments) {
        for (const auto& [letters, name] : kTable) {
            if (argument == letters) argument = name;
        }
    }
    return arguments;
}

// Gives switches that stand alone their value: the parser would give them their default.
static std::vector<std::string> complete_switches(const CLI::App& app, const std::vector<std::string>& arguments) {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < arguments.size(); i++) {
        result.push_back(arguments[i]);
        const CLI::Option* option = app.get_option_no_throw(arguments[i]);
        bool is_switch = option != nullptr && option->get_expected_min() == 0 && option->get_expected_max() == 1;
        bool alone = i + 1 == arguments.size() || arguments[i + 1].starts_with("-");
        if (is_switch && alone && option->get_type_size() > 0) result.push_back("1");
    }
    return result;
}

static void set(CLI::Option& option, const std::string& value) {
    option.add_result(value);
    option.run_callback();
}

// On the command line itself; a file given by --config may have it too, and less to say.
static bool is_given(const CLI::App& app, const std::vector<std::string>& arguments, const std::string& name) {
    const CLI::Option* const option = app.get_option_no_throw(name);
    return std::ranges::any_of(arguments, [&](const std::string& argument) {
        return argument.starts_with("-") && app.get_option_no_throw(argument.substr(0, argument.find('='))) == option;
    });
}

// --data stands for the patterns that are not given beside it.
static void take_named_data(CLI::App& app, const std::vector<std::string>& arguments, const std::string& name) {
    const CLI::Option* const data = app.get_option_no_throw("--data");
    if (data == nullptr || data->count() == 0) return;
    const DataPatterns found = find_named_data(name);
    for (const auto& [flag, pattern] : {std::pair("--train-data", found.train), std::pair("--val-data", found.val)}) {
        CLI::Option* const option = app.get_option_no_throw(flag);
        if (option != nullptr && !is_given(app, arguments, flag)) set(*option, pattern);
    }
}

// What nobody has given is as the run was started.
static void take_recorded(CLI::App& app, const RunRecord& record, const std::string& folder) {
    for (const auto& [name, value] : record.options) {
        CLI::Option* option = app.get_option_no_throw("--" + name);
        if (option == nullptr) {
            throw Error(ErrorKind::bad_data, text(folder, "/options.json: --", name, ": unknown option"),
                        "Resume with the program that began the run, or remove the file and give all options.");
        }
        if (option->count() > 0 || belongs_to_one_start(name)) continue;
        try {
            set(*option, value);
        } catch (const WrongValue& wrong) {
            throw Error(ErrorKind::bad_data, text(folder, "/options.json: ", wrong.message()),
                        "Restore the file from a copy, or remove it and give all options.");
        }
    }
}

static std::vector<OptionText> texts_of(const CLI::App& app) {
    std::vector<OptionText> texts;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_configurable() && !option->get_single_name().starts_with("help") &&
            option->get_single_name() != "config") {
            texts.push_back({option->get_single_name(), option->get_default_str()});
        }
    }
    return texts;
}

// Sets what the options are bound to. Returns what to print and do nothing else, if anything.
static std::string read_arguments(CLI::App& app, Verb verb, const std::vector<std::string>& of_others,
                                  const std::vector<std::string>& arguments) {
    auto config = [&app] { return app["--config"]->as<std::string>(); };
    try {
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));   // it takes them from the back
    } catch (const CLI::CallForHelp&) {
        return app.help();
    } catch (const CLI::CallForVersion&) {
        return version_text() + "\n";
    } catch (const CLI::ExtrasError&) {
        refuse_option_of_others(app, verb, of_others);
        left_over(app, app.remaining().front());
    } catch (const CLI::ConfigError& error) {
        look_for_unknown_keys(app, config());
        throw Error(
            ErrorKind::usage, text("--config ", config(), ": ", error.what()),
            "Each line is `name = value` with the long name of an option; `train_gpt --print-config` prints them all.");
    } catch (const CLI::FileError& error) {
        throw Error(ErrorKind::io, text("--config ", config(), ": ", error.what()));
    } catch (const CLI::ParseError& error) {
        throw Error(ErrorKind::usage, error.what(), "`train_gpt --help` lists every option.");
    } catch (const WrongValue& wrong) {
        if (!takes_options_of_training(verb) || app["--config"]->count() == 0 || is_given(app, arguments, wrong.flag())) throw;
        throw Error(wrong.kind(), where_in_config(app, config(), wrong) + wrong.message(), wrong.hint());
    }
    return "";
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
    CommandLine result;
    result.verb = take_verb(arguments);
    Options& o = result.options;
    if (!takes_options_of_training(result.verb)) set_defaults_of_verbs(o);
    CLI::App app("Pretrains GPT models.", "train_gpt");
    app.set_help_flag("--help", "print this and exit")->group("General");
    app.set_config("--config", "", "read options from this file, lines of name = value")->group("General");
    bool print_config = false;
    app.add_flag("--print-config", print_config, "print all options as a file for --config, and exit")
        ->group("General")
        ->configurable(false);
    app.set_version_flag("--version", version_text(), "print which version this is, and exit")->group("General");
    app.allow_config_extras(false);
    OptionsBeside beside;
    add_options(app, o, beside);
    const std::vector<std::string> of_others = keep_options_of(result.verb, app);

    check_config_file(arguments);
    arguments = complete_switches(app, translate_llmc_flags(std::move(arguments)));
    result.print_and_exit = read_arguments(app, result.verb, of_others, arguments);
    if (!result.print_and_exit.empty()) return result;
    take_named_data(app, arguments, beside.data_name);
    if (!takes_options_of_training(result.verb)) {
        check_verb(result.verb, o);
        if (result.verb == Verb::evaluate && app["--seq-len"]->count() == 0) o.seq_len = 0;
        result.shared = app.config_to_str(true, false);
        return result;
    }

    const bool counts_micro_batches =
        app["--val-max-micro-batches"]->count() > 0 && !is_given(app, arguments, "--val-max-batches");
    if (o.resume && !o.output_dir.empty()) result.recorded = read_run_record(real_files(), o.output_dir);
    if (result.recorded) take_recorded(app, *result.recorded, o.output_dir);
    if (counts_micro_batches) {
        std::int64_t sequences = std::int64_t{beside.llmc_val_batches} * o.micro_batch;
        set(*app.get_option_no_throw("--val-max-batches"),
            text(beside.llmc_val_batches < 0 ? -1 : std::min<std::int64_t>(sequences, INT32_MAX)));
    }
    check_together(o);
    result.shared = app.config_to_str(true, false);
    result.texts = texts_of(app);
    if (beside.picture != Picture::none) {
        const int ranks = o.startup.ranks > 0 ? o.startup.ranks : read_launch_environment().ranks;
        if (o.dp == 0) o.dp = static_cast<int>(std::max<std::int64_t>(1, ranks / (std::int64_t{o.pp} * o.cp * o.tp)));
        check_together(o);
        check_micro_batches(o);
        const PipelineShape shape = pipeline_shape(o);
        const DrawnCosts drawn = drawn_costs_from(beside.costs);
        result.print_and_exit =
            beside.picture == Picture::svg ? schedule_svg(shape, drawn) : schedule_text(shape, drawn);
    }
    if (print_config) result.print_and_exit = app.config_to_str(true, true);
    return result;
}
