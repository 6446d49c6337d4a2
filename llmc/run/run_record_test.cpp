#include "llmc/run/run_record.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

RunRecord some_record() {
    RunRecord record;
    record.options = {{"lr", "0.0003"}, {"train-data", "a \"b\"/*.bin"}, {"stop-after", "3"}};
    record.data = {{"train-data", 2, 99, "0123456789abcdef", {{"a/manifest.json", "fedcba9876543210"}}}};
    record.starts = {describe_start({7, "bf16", "a device", {"n1", "n2", "n1"}, {{"lr", "1", "0.0003"}}})};
    return record;
}

}   // namespace

TEST_CASE("run record: what is written reads back") {
    TemporaryFolder folder;
    const std::string out = folder / "runs/a";
    CHECK(!read_run_record(real_files(), out));
    const RunRecord record = some_record();
    write_run_record(real_files(), out, record);
    const std::optional<RunRecord> found = read_run_record(real_files(), out);
    REQUIRE(found);
    CHECK(found->options == record.options);
    REQUIRE(found->data.size() == 1);
    CHECK(found->data[0].option == "train-data");
    CHECK(found->data[0].shards == 2);
    CHECK(found->data[0].tokens == 99);
    CHECK(found->data[0].hash == record.data[0].hash);
    CHECK(found->data[0].manifests == record.data[0].manifests);
    REQUIRE(found->starts.size() == 1);
    const Json& start = found->starts[0];
    CHECK(start == record.starts[0]);
    CHECK(start.at("after_step").as_whole(100) == 7);
    CHECK(start.at("processes").as_whole(100) == 3);
    CHECK(start.at("hosts").at("n1").as_whole(100) == 2);
    CHECK(start.at("changed").at("lr").elements().at(1).as_text() == "0.0003");
    CHECK(start.at("program").as_text().size() == 16);
    CHECK(start.at("time").as_text().size() == 20);
}

TEST_CASE("run record: a damaged one is refused, and says what was found") {
    TemporaryFolder folder;
    write_run_record(real_files(), folder.path(), some_record());
    const std::string path = folder / "options.json", sound = read_whole(real_files(), path);
    auto complaint = [&](const std::string& from, const std::string& to) -> std::string {
        std::string content = sound;
        REQUIRE(content.find(from) != std::string::npos);
        write_whole(real_files(), path, content.replace(content.find(from), from.size(), to));
        try {
            read_run_record(real_files(), folder.path());
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            CHECK(std::string(error.what()).starts_with(path + ": not the record of a run"));
            return error.what();
        }
        return "";
    };
    CHECK(complaint("\"lr\"", "\"lr\"") == "");
    CHECK(complaint("\"version\": 1", "\"version\": 2").find("version 2, expected") != std::string::npos);
    CHECK(complaint("\"train_gpt run\"", "\"run\"").find("found format \"run\"") != std::string::npos);
    CHECK(complaint("\"0.0003\"", "3").find("a text") != std::string::npos);
    CHECK(complaint("\"options\"", "\"option\"").find("options") != std::string::npos);
    CHECK(complaint("\"tokens\": 99", "\"tokens\": -1").find("found -1") != std::string::npos);
    CHECK(complaint("{", "[") != "");
    CHECK(complaint("\"train-data\",\n", "\"\",\n").find("found data of the option \"\"") != std::string::npos);
    for (const char* name : {"options", "data"}) {   // what follows, under a name that nobody reads
        const std::string empty = text("\"", name, "\": ", *name == 'o' ? "{}" : "[]", ", \"was\":");
        CHECK(complaint(text("\"", name, "\":"), empty).find(text("\"", name, "\" is empty")) != std::string::npos);
    }
}

TEST_CASE("run record: options that differ are those of the run") {
    const std::vector<OptionText> recorded{{"lr", "1"}, {"stop-after", "3"}, {"seed", "42"}};
    const std::vector<OptionText> now{{"lr", "2"}, {"stop-after", "4", true}, {"seed", "42"}};
    const std::vector<ChangedOption> changed = changed_options(recorded, now);
    REQUIRE(changed.size() == 1);
    CHECK(changed[0].name == "lr");
    CHECK(changed[0].recorded == "1");
    CHECK(changed[0].now == "2");
    CHECK(changed_options({}, now).empty());   // the first start
}

TEST_CASE("run record: options of each start, from those of the last one back") {
    RunRecord record;
    record.options = {{"lr", "4"}, {"total-batch", "96"}, {"seed", "1"}};
    auto add = [&](int after, const std::vector<ChangedOption>& changed) {
        record.starts.push_back(describe_start({after, "fp32", "a device", {"n1"}, changed}));
    };
    auto told = [&] {
        std::string words;
        for (const OptionsOfStart& start : history_of(record, "options.json")) {
            words += text(words.empty() ? "" : "; ", start.after_step);
            for (const OptionText& option : start.options) words += text(" ", option.value);
        }
        return words;
    };
    CHECK(told().empty());
    add(0, {});
    CHECK(told() == "0 4 96 1");
    add(4, {{"lr", "1", "2"}});
    add(8, {{"total-batch", "32", "64"}, {"lr", "2", "3"}});
    add(8, {{"total-batch", "64", "96"}});   // the start before made no step
    add(12, {{"lr", "3", "4"}});
    CHECK(told() == "0 1 32 1; 4 2 32 1; 8 3 96 1; 12 4 96 1");
    add(6, {});   // its steps are made anew
    CHECK(told() == "0 1 32 1; 4 2 32 1; 6 4 96 1");
    record.starts.push_back(parse_json(R"({"after_step": 9, "processes": 1, "changed": {"lr": []}})"));
    CHECK_THROWS_AS(told(), Error);
    record.starts.back() = parse_json(R"({"after_step": -1, "processes": 1, "changed": {}})");
    CHECK_THROWS_AS(told(), Error);
    record.starts.back() = parse_json(R"({"after_step": 5, "changed": {}})");
    CHECK_THROWS_WITH_AS(told(), doctest::Contains("processes"), Error);
    record.starts.back() = describe_start({5, "fp32", "a device", {"n1", "n2", "n2"}, {}});
    const std::vector<OptionsOfStart> history = history_of(record, "options.json");
    CHECK(history[1].processes == 1);
    CHECK(history.back().processes == 3);
}

TEST_CASE("run record: data are the same wherever they lie, and others when a token is") {
    TemporaryFolder folder;
    auto write = [&](const std::string& name, std::uint32_t token) {
        real_files().make_folders(folder / name);
        for (const char* shard : {"train_000000.bin", "train_000001.bin"}) {
            const std::vector<std::uint32_t> ids{1, 2, token};
            write_token_file(real_files(), folder / (name + "/" + shard), TokenFormat::gpt2, ids);
        }
    };
    auto prepare = [&](const std::string& name, std::uint64_t hash) {
        CorpusManifest manifest;
        manifest.tokenizer_name = "bytes", manifest.vocab_size = 257, manifest.token_bytes = 2;
        for (const char* shard : {"train_000000.bin", "train_000001.bin"}) {
            manifest.shards.push_back({shard, "train", 3, hash++});
        }
        write_manifest(manifest, folder / name);
    };
    auto describe = [&](const std::string& name, const char* shards = "/*.bin") {
        return describe_data(real_files(), "--train-data", folder / (name + shards));
    };
    for (const char* name : {"a", "b", "c"}) write(name, 3);
    CHECK(describe("a").hash == describe("b").hash);   // nothing tells them apart
    CHECK(describe("a").tokens == 6);
    CHECK(describe("a").shards == 2);
    CHECK(describe("a").manifests.empty());
    prepare("a", 7), prepare("b", 7), prepare("c", 8);
    CHECK(describe("a").hash == describe("b").hash);
    CHECK(describe("a").hash != describe("c").hash);
    CHECK(describe("a").manifests.size() == 1);
    CHECK(describe("a").manifests[0].value == describe("b").manifests[0].value);
    CHECK(describe("a", "/*0.bin").hash != describe("a", "/*1.bin").hash);
    CHECK(describe("none").shards == 0);
}
