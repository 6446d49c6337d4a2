// Tests which options a resumed or branched run takes from its options.json.

#include "llmc/cli/command_line.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/model/field_values_testing.h"
#include "llmc/run/options/part_options.h"

namespace {

Options parse(std::vector<std::string> arguments) { return parse_command_line(std::move(arguments)).options; }

// Returns the message about these arguments, with the exit code in front.
std::string complaint(std::vector<std::string> arguments) {
    try {
        parse_command_line(std::move(arguments));
    } catch (const Error& error) {
        return text(error.exit_code(), " ", error.what());
    }
    return "";
}

RunRecord record_of(const CommandLine& line) {
    RunRecord record;
    record.options = line.texts;
    record.data = {{"train-data", 1, 100, "0123456789abcdef", {}}};
    return record;
}

}   // namespace

TEST_CASE("options: a resumed run has the recorded options where nothing else is given, however they are spelled") {
    TemporaryFolder folder;
    const std::string config = folder / "run.cfg", out = folder / "out";
    auto value = [](const CommandLine& line, const std::string& name) {
        const auto found = std::ranges::find(line.texts, name, &OptionText::name);
        return found == line.texts.end() ? "(none)" : found->value;
    };
    RunRecord record = record_of(parse_command_line(
        {"-l", "2e-3", "-b", "2", "-m", "10", "-r", "3", "-w", "0", "--stop-after", "9", "-o", "else"}));
    write_run_record(real_files(), out, record);
    write_whole(real_files(), config, "warmup=5\n");

    const CommandLine line = parse_command_line({"--resume", "-o", out, "--config", config, "--seed", "7"});
    CHECK(line.options.lr == 2e-3f);
    CHECK(line.options.micro_batch == 2);
    CHECK(line.options.val_max_batches == 20);
    CHECK(line.options.recompute == Recompute::block);
    CHECK(line.options.master_weights == MasterWeights::none);
    CHECK(line.options.warmup == 5);       // from the file
    CHECK(line.options.seed == 7);         // from the command line
    CHECK(line.options.stop_after == 0);   // belongs to that start alone
    CHECK(line.options.output_dir == out);
    CHECK(value(line, "lr") == "0.002");
    CHECK(value(line, "recompute") == "block");
    const std::vector<ChangedOption> changed = changed_options(record.options, line.texts);
    REQUIRE(changed.size() == 2);
    CHECK(changed[0].name == "warmup");
    CHECK(changed[0].recorded == "0");
    CHECK(changed[1].now == "7");
    CHECK(changed_options(record.options, parse_command_line({"--resume", "-o", out, "--lr=0.0020", "-w", "false",
                                                              "--recompute", "block", "-m", "10"})
                                              .texts)
              .empty());
    CHECK(std::ranges::count(line.texts, true, &OptionText::of_one_start) == 14);
    CHECK(!parse_command_line({"-o", out}).recorded);
    std::ranges::find(record.options, "tp", &OptionText::name)->value = "none";
    write_run_record(real_files(), out, record);
    CHECK(complaint({"--resume", "-o", out}).find("65 " + out + "/options.json: --tp none: expected an integer") == 0);
    record.options.insert(record.options.begin(), {"no-such-option", "1"});
    write_run_record(real_files(), out, record);
    CHECK(complaint({"--resume", "-o", out}).find("65 " + out + "/options.json: --no-such-option: unknown") == 0);
}

TEST_CASE("options: what belongs to a feature that a resumed run switches off leaves with it") {
    using Arguments = std::vector<std::string>;
    struct Case {
        Arguments begun, off;
        std::vector<std::string> left;   // options that have their defaults again
    };
    const Case cases[] = {
        {{"--grad-compression", "topk", "--grad-topk", "0.1"}, {"--grad-compression", "none"}, {"grad-topk"}},
        {{"--grad-compression", "topk", "--grad-topk", "0.1"}, {"--grad-compression", "powersgd"}, {"grad-topk"}},
        {{"--local-steps", "4", "--zero-group", "1", "--outer-compression", "topk", "--outer-topk", "0.1"},
         {"--local-steps", "0"},
         {"zero-group", "outer-compression", "outer-topk"}},
        {{"--schedule", "wsd", "--decay-steps", "2"}, {"--schedule", "cosine"}, {"decay-steps"}},
        {{"--document-mask", "1", "--boundary-loss", "0"}, {"--document-mask", "0"}, {"boundary-loss"}},
        {{"--optimizer", "muon", "--muon-lr", "0.01"}, {"--optimizer", "adamw"}, {"muon-lr"}},
        {{"--cp", "2", "--cp-mode", "ulysses"}, {"--cp", "1"}, {"cp-mode"}},
        {{"--pp", "2", "--pp-schedule", "interleaved", "--pp-chunks", "2"},
         {"--pp", "1"},
         {"pp-schedule", "pp-chunks"}},
        {{"--pp", "2", "--pp-warmup", "3"}, {"--pp-schedule", "gpipe"}, {"pp-warmup"}},
        {{"--cp", "4", "--cp-mode", "hybrid", "--cp-ulysses", "2"}, {"--cp-mode", "ring"}, {"cp-ulysses"}},
        {{"--metrics-port", "19477", "--metrics-host", "0.0.0.0"}, {"--metrics-port", "0"}, {"metrics-host"}},
        {{"--val-every", "5", "--keep-best", "1"}, {"--val-every", "0"}, {"keep-best"}},
        {{"--skip-loss-z", "5", "--spike-rewind", "2", "--document-mask", "1", "--boundary-loss", "0"},
         {"--skip-loss-z", "0", "--document-mask", "0"},
         {"spike-rewind", "boundary-loss"}},
    };
    for (const Case& c : cases) {
        CAPTURE(c.begun[0]);
        TemporaryFolder folder;
        const std::string out = folder / "out";
        Arguments begin{"-o", out}, resume{"--resume", "-o", out};
        begin.insert(begin.end(), c.begun.begin(), c.begun.end());
        const CommandLine begun = parse_command_line(begin);
        const RunRecord record = record_of(begun);
        write_run_record(real_files(), out, record);
        // as long as the feature is on, the record's options stay
        CHECK(changed_options(record.options, parse_command_line(resume).texts).empty());
        resume.insert(resume.end(), c.off.begin(), c.off.end());
        const CommandLine now = parse_command_line(resume), fresh = parse_command_line({"-o", out});
        auto value = [](const CommandLine& line, const std::string& name) {
            return std::ranges::find(line.texts, name, &OptionText::name)->value;
        };
        for (const std::string& name : c.left) {
            CAPTURE(name);
            CHECK(value(now, name) == value(fresh, name));
            CHECK(value(begun, name) != value(fresh, name));
        }
        // the start says what has left (changed_options)
        CHECK(changed_options(record.options, now.texts).size() == c.left.size() + c.off.size() / 2);
    }
}

TEST_CASE("options: another --rope-scaling leaves the recorded numbers of the run's scaling behind") {
    TemporaryFolder folder;
    const std::string out = folder / "out";
    const RunRecord record =
        record_of(parse_command_line({"--rope-scaling", "llama3", "--rope-factor", "4", "--rope-high-freq-factor", "6",
                                      "--rope-original-len", "128", "--rope-theta", "80000", "-o", "else"}));
    write_run_record(real_files(), out, record);
    constexpr auto none = static_cast<double>(RopeScaling::none), linear = static_cast<double>(RopeScaling::linear),
                   llama3 = static_cast<double>(RopeScaling::llama3);
    ModelConfig model = custom_model_config(2, 4, 64, 1024);
    model.positions = PositionKind::rotary;
    const ModelChoices of_run = parse({"--resume", "-o", out}).architecture;
    apply(of_run, model);
    using Arguments = std::vector<std::string>;
    for (const Arguments& begin : {Arguments{"--resume", "-o", out}, {"--branch-from", out, "-o", folder / "branch"}}) {
        const auto continued = [&](const Arguments& more) {
            Arguments all = begin;
            all.insert(all.end(), more.begin(), more.end());
            const Options options = parse(all);
            continued_model(model, options);
            return options.architecture;
        };
        CHECK(continued({"--rope-scaling", "none"}) == ModelChoices{{"rope-scaling", none}, {"rope-theta", 8e4}});
        CHECK(continued({"--rope-scaling", "linear", "--rope-factor", "8"}) ==
              ModelChoices{{"rope-scaling", linear}, {"rope-factor", 8}, {"rope-theta", 8e4}});
        CHECK_THROWS_WITH_AS(continued({"--rope-scaling", "linear"}),
                             doctest::Contains("--rope-scaling without a --rope-factor above 1"), Error);
        const ModelChoices recorded{{"rope-scaling", llama3},
                                    {"rope-factor", 4},
                                    {"rope-high-freq-factor", 6},
                                    {"rope-original-len", 128},
                                    {"rope-theta", 8e4}};
        CHECK(continued({"--rope-scaling", "llama3"}) == recorded);
        ModelChoices more = recorded;
        more["rope-factor"] = 16;
        CHECK(continued({"--rope-factor", "16"}) == more);
    }
}

TEST_CASE("options: every value of every field of the model comes back from options.json") {
    TemporaryFolder folder;
    const std::string out = folder / "out";
    for (const ModelField& field : model_fields()) {
        const ModelConfig plain = plain_for(field, custom_model_config(3, 4, 64));
        for (const double value : values_to_try(field, plain)) {
            if (field.basic) continue;
            ModelConfig wanted = plain;
            field.set(wanted, value);
            const CommandLine first =
                parse_command_line({text("--", field.name), field.value_of(wanted), "-o", "else"});
            write_run_record(real_files(), out, record_of(first));
            const Options resumed = parse_command_line({"--resume", "-o", out}).options;
            INFO(std::string(field.name), " ", field.value_of(wanted));
            CHECK(resumed.architecture == ModelChoices{{field.name, value}});
        }
    }
}
