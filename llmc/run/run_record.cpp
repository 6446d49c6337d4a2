#include "llmc/run/run_record.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/data/data_files.h"
#include "llmc/data/token_file.h"
#include "llmc/io/hash.h"

namespace {

constexpr const char* kFormat = "train_gpt run";
constexpr std::uint64_t kVersion = 1;

std::string record_path(const std::string& folder) { return folder + "/options.json"; }

Json to_json(const std::vector<OptionText>& texts) {
    Json json = Json::object();
    for (const OptionText& text : texts) json.add(text.name, text.value);
    return json;
}

std::vector<OptionText> texts_from(const Json& json) {
    std::vector<OptionText> texts;
    for (const auto& [name, value] : json.members()) texts.push_back({name, value.as_text()});
    return texts;
}

Json to_json(const RecordedData& data) {
    return Json::object({{"option", data.option},
                         {"shards", data.shards},
                         {"tokens", data.tokens},
                         {"hash", data.hash},
                         {"manifests", to_json(data.manifests)}});
}

RecordedData data_from(const Json& json) {
    const std::string& option = json.at("option").as_text();
    if (!option.starts_with("train-data") && !option.starts_with("val-data")) {
        throw JsonError(
            text("found data of the option ", quoted(json.at("option")), ", expected train-data or val-data"));
    }
    return {option, json.at("shards").as_whole(UINT64_MAX), json.at("tokens").as_whole(UINT64_MAX),
            json.at("hash").as_text(), texts_from(json.at("manifests"))};
}

RunRecord record_from(const Json& json) {
    if (json.at("format").as_text() != kFormat || json.at("version").as_whole(UINT64_MAX) != kVersion) {
        throw JsonError(text("found format ", quoted(json.at("format")), ", version ", quoted(json.at("version")),
                             ", expected \"", kFormat, "\", version ", kVersion));
    }
    RunRecord record;
    record.options = texts_from(json.at("options"));
    for (const Json& data : json.at("data").elements()) record.data.push_back(data_from(data));
    record.starts = json.at("starts").elements();
    // every run has some of each; without them a resumed one would take defaults, or any data
    if (record.options.empty()) throw JsonError("\"options\" is empty");
    if (record.data.empty()) throw JsonError("\"data\" is empty");
    return record;
}

}   // namespace

std::vector<ChangedOption> changed_options(const std::vector<OptionText>& recorded,
                                           const std::vector<OptionText>& now) {
    std::vector<ChangedOption> changed;
    for (const OptionText& option : now) {
        const auto was = std::ranges::find(recorded, option.name, &OptionText::name);
        if (option.of_one_start || was == recorded.end() || was->value == option.value) continue;
        changed.push_back({option.name, was->value, option.value});
    }
    return changed;
}

std::vector<OptionsOfStart> history_of(const RunRecord& record, const std::string& path) {
    std::vector<OptionsOfStart> history;
    std::vector<OptionText> options = record.options;   // options of the current start, from the last one back
    try {
        for (auto start = record.starts.rbegin(); start != record.starts.rend(); ++start) {
            const int after = static_cast<int>(start->at("after_step").as_whole(INT32_MAX));
            if (history.empty() || after < history.back().after_step) {
                const int processes = static_cast<int>(start->at("processes").as_whole(INT32_MAX));
                history.push_back({after, processes, options});
            }
            const Json& changed = start->at("changed");
            for (OptionText& option : options) {
                if (const Json* const change = changed.find(option.name)) {
                    option.value = change->elements().at(0).as_text();
                }
            }
        }
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": its starts: ", error.what()), "Restore the file from a copy.");
    } catch (const std::out_of_range&) {
        throw Error(ErrorKind::bad_data, text(path, ": its starts: an option that changed without its values"),
                    "Restore the file from a copy.");
    }
    std::ranges::reverse(history);
    return history;
}

std::optional<RunRecord> read_run_record(const FileSystem& files, const std::string& folder) {
    const std::string path = record_path(folder);
    if (!files.exists(path)) return std::nullopt;
    try {
        return record_from(parse_json(read_whole(files, path)));
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": not the record of a run: ", error.what()),
                    "Remove it and give all options of the run on the command line.");
    }
}

void write_run_record(FileSystem& files, const std::string& folder, const RunRecord& record) {
    Json data = Json::array();
    for (const RecordedData& of_option : record.data) data.append(to_json(of_option));
    const Json json = Json::object({{"format", kFormat},
                                    {"version", kVersion},
                                    {"options", to_json(record.options)},
                                    {"data", data},
                                    {"starts", Json::array(record.starts)}});
    files.make_folders(folder);
    write_whole(files, record_path(folder), to_text(json, 1) + "\n");
}

RecordedData describe_data(const FileSystem& files, const std::string& flag, const std::string& pattern) {
    RecordedData data;
    data.option = flag.substr(2);
    std::map<std::string, std::optional<CorpusManifest>> manifests;   // by folder
    Hash64 all;
    for (const std::string& path : find_data_files(flag, pattern)) {
        const std::filesystem::path shard = path;
        const auto [manifest, is_new] = manifests.try_emplace(shard.parent_path().string());
        const std::string beside = (shard.parent_path() / manifest_file_name).string();
        if (is_new && files.exists(beside)) {
            manifest->second = read_manifest(files, manifest->first);
            data.manifests.push_back({printable(beside), hash_to_text(hash64(read_whole(files, beside)))});
        }
        const std::uint64_t tokens = TokenFile(files, path).count();
        std::string identity = text(shard.filename().string(), " ", tokens, "\n");
        if (manifest->second) {
            const auto listed =
                std::ranges::find(manifest->second->shards, shard.filename().string(), &ShardInfo::file);
            if (listed != manifest->second->shards.end()) identity = text(hash_to_text(listed->hash), "\n");
        }
        all.update(identity.data(), identity.size());
        data.shards++;
        data.tokens += tokens;
    }
    data.hash = hash_to_text(all.digest());
    return data;
}

Json describe_start(const ThisStart& start) {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char time[32];
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);

    std::map<std::string, int> processes;
    for (const std::string& host : start.hosts) processes[host]++;
    Json hosts = Json::object(), changed = Json::object();
    for (const auto& [host, count] : processes) hosts.add(host, count);
    for (const ChangedOption& option : start.changed) {
        changed.add(option.name, Json::array({option.recorded, option.now}));
    }
    return Json::object({{"after_step", start.after_step},
                         {"time", std::string(time)},
                         {"program", hash_to_text(hash64(read_large(real_files(), "/proc/self/exe")))},
                         {"precision", start.precision},
                         {"device", start.device},
                         {"processes", start.hosts.size()},
                         {"hosts", hosts},
                         {"changed", changed}});
}
