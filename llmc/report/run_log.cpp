#include "llmc/report/run_log.h"

#include <ctime>
#include <utility>

#include "llmc/report/records.h"

std::string time_now() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char time[32];
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return time;
}

RunLog::RunLog(FileSystem& files, const std::string& folder, bool afresh) {
    const std::string path = folder + "/" + run_log_name;
    if (afresh) files.create(path);
    file_ = files.append(path);
    if (file_->size() > 0) file_->write(bytes_of("\n"));   // ends a torn line
}

void RunLog::add(int step, const std::string& key, Json value) {
    Json line = Json::object({{"step", step}, {"time", time_now()}});
    line.add(key, std::move(value));
    file_->write(bytes_of(to_text(line) + "\n"));
}

std::vector<Json> read_run_log(const std::string& folder) {
    std::vector<Json> told;
    std::uint64_t from = 0;
    for_whole_lines(folder + "/" + run_log_name, from, [&told](const std::string& line) {
        try {
            Json json = parse_json(line);
            if (json.contains("step") && json.at("step").is_number()) told.push_back(std::move(json));
        } catch (const JsonError&) {   // torn or empty line: skipped
        }
    });
    return told;
}
