#include "llmc/report/records.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <span>

#include "llmc/base/error.h"
#include "llmc/io/file.h"

namespace {

constexpr std::uint64_t longest_line = std::uint64_t{1} << 20;

std::string name_of(const std::string& metrics) {
    const std::filesystem::path path = std::filesystem::absolute(metrics).lexically_normal();
    return path.filename() == "metrics.jsonl" ? path.parent_path().filename().string() : path.stem().string();
}

}   // namespace

const Points& Run::of(const std::string& key) const {
    static const Points none;
    const auto found = series.find(key);
    return found == series.end() ? none : found->second;
}

void for_whole_lines(const std::string& path, std::uint64_t& from,
                     const std::function<void(const std::string&)>& take) {
    if (!real_files().exists(path)) return;
    const std::unique_ptr<File> file = real_files().open(path);
    std::string block(longest_line, '\0');
    for (std::uint64_t size = file->size(); from < size;) {
        block.resize(std::min<std::uint64_t>(longest_line, size - from));
        file->read_at(from, std::as_writable_bytes(std::span(block)));
        std::size_t begin = 0;
        for (std::size_t end; (end = block.find('\n', begin)) != block.npos; begin = end + 1) {
            from += end + 1 - begin;
            take(block.substr(begin, end - begin));
        }
        if (begin > 0) continue;
        if (block.size() < longest_line) break;   // the last line may not have its end yet
        throw Error(ErrorKind::bad_data, text(path, ": byte ", from, ": a line of more than ", longest_line, " bytes"),
                    "Records have short lines: is this another file?");
    }
}

RunReader::RunReader(std::string path, CurveAxis axis) : path_(std::move(path)), axis_(axis) {
    run_.name = name_of(path_);
}

const Run& RunReader::read() {
    real_files().open(path_);   // throws unless it is a regular file that can be read
    struct stat now {};
    if (stat(path_.c_str(), &now) != 0) fail_on_file(path_, "stat", errno);
    if (now.st_ino != file_ || static_cast<std::uint64_t>(now.st_size) < bytes_) {
        run_ = {run_.name, {}, 0};
        file_ = now.st_ino;
        bytes_ = 0;
        lines_ = 0;
        x_ = 0;
    }
    for_whole_lines(path_, bytes_, [this](const std::string& line) {
        lines_++;
        take(line);
    });
    return run_;
}

void RunReader::take(const std::string& line) {
    const Json row = [&] {
        try {
            return parse_json(line);
        } catch (const JsonSyntaxError&) {
            return Json();
        }
    }();
    const Json* step = row.find("step");
    if (step == nullptr || !step->is_number()) {
        throw Error(ErrorKind::bad_data,
                    text(path_, ":", lines_, ": not a JSON object with a \"step\": ", line.substr(0, 200)));
    }
    if (row.find("rewind_from") != nullptr) return;   // a rewind is no step
    if (row.find("loss") != nullptr) advance(row);
    run_.last_step = step->as_number();
    const double x = axis_ == CurveAxis::steps ? step->as_number() : x_;
    for (const auto& [key, value] : row.members()) {
        if (value.is_number()) run_.series[key].push_back({x, value.as_number()});   // null: the value was not finite
        if (!value.is_object()) continue;
        for (const auto& [member, of_member] : value.members()) {
            if (of_member.is_number()) run_.series[text(key, "/", member)].push_back({x, of_member.as_number()});
        }
    }
}

// Moves x_ by the tokens or hours of one step.
void RunReader::advance(const Json& row) {
    if (axis_ == CurveAxis::steps) return;
    const Json *speed = row.find("tokens_per_s"), *time = row.find("step_ms");
    if (speed == nullptr || time == nullptr || !speed->is_number() || !time->is_number()) {
        throw Error(ErrorKind::bad_data,
                    text(path_, ":", lines_, ": no tokens_per_s and step_ms, from which tokens and hours follow"),
                    "Draw it with -x steps.");
    }
    const double seconds = time->as_number() / 1000;
    x_ += axis_ == CurveAxis::hours ? seconds / 3600 : speed->as_number() * seconds;
}
