#include "llmc/tokenizer/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;

namespace {

// Collects the files of one folder and those below it.
class Walk {
public:
    explicit Walk(InputFiles& into) : into_(into) {}

    void read(const std::string& folder) {
        if (!is_new(folder)) return pass_over("read already by another link", folder);
        const std::vector<std::string> names = names_in(folder);
        const bool is_cache = std::ranges::count_if(names, [](const std::string& name) {
                                  return name == "blobs" || name == "refs" || name == "snapshots";
                              }) == 3;
        for (const std::string& name : names) {
            const std::string path = folder + (folder.ends_with('/') ? "" : "/") + name;
            if (name.starts_with('.')) {
                pass_over("hidden", path);
            } else if (name == "__pycache__" || (is_cache && name != "snapshots")) {
                pass_over("of caches", path);
            } else {
                add(path);
            }
        }
    }

private:
    void add(const std::string& path) {
        std::error_code why;
        const fs::file_status status = fs::status(path, why);
        if (fs::is_directory(status)) {
            read(path);
        } else if (fs::is_regular_file(status)) {
            into_.files.push_back(path);
        } else if (fs::exists(status)) {
            pass_over("neither file nor folder", path);
        } else if (!fs::status_known(status) && why != std::errc::too_many_symbolic_link_levels) {
            fail(path, why.message());
        } else {
            pass_over("leading nowhere", path);
        }
    }

    // Returns false if this folder was read before, under whatever name: so a loop of links ends.
    bool is_new(const std::string& folder) {
        struct stat info {};
        if (::stat(folder.c_str(), &info) != 0) fail(folder, std::strerror(errno));
        return seen_.emplace(info.st_dev, info.st_ino).second;
    }

    static std::vector<std::string> names_in(const std::string& folder) {
        std::error_code problem;
        std::vector<std::string> names;
        fs::directory_iterator entry(folder, problem);
        for (; !problem && entry != fs::directory_iterator(); entry.increment(problem)) {
            names.push_back(entry->path().filename().string());
        }
        if (problem) fail(folder, problem.message());
        std::ranges::sort(names);
        return names;
    }

    [[noreturn]] static void fail(const std::string& path, const std::string& why) {
        throw Error(ErrorKind::io, text("cannot read ", path, ": ", why),
                    "Make it readable, or name as inputs what is to be read.");
    }

    void pass_over(const char* why, const std::string& path) { into_.passed_over.add(why, path); }

    InputFiles& into_;
    std::set<std::pair<dev_t, ino_t>> seen_;
};

}   // namespace

void PassedOver::add(const std::string& why, const std::string& path) {
    Group& group = groups_[why];
    if (group.count++ == 0) group.first = path;
}

void PassedOver::add(const PassedOver& later) {
    for (const auto& [why, group] : later.groups_) {
        Group& here = groups_[why];
        if (here.count == 0) here.first = group.first;
        here.count += group.count;
    }
}

std::string PassedOver::summary() const {
    std::string all;
    for (const auto& [why, group] : groups_) {
        all += text(all.empty() ? "" : "; ", group.count, " ", why, " (", group.count > 1 ? "the first: " : "",
                    group.first, ")");
    }
    return all;
}

void InputFiles::add(const std::string& input) {
    std::error_code why;   // a loop of links, say
    const fs::file_status status = fs::status(input, why);
    if (input != "-" && !fs::exists(status)) {
        throw Error(ErrorKind::io, text("no file or folder ", input, ": ", why.message()));
    }
    if (!fs::is_directory(status)) {
        files.push_back(input);
        return;
    }
    const std::size_t first = files.size();
    Walk(*this).read(input);
    if (files.size() == first) {
        const std::string others = passed_over.summary();
        throw Error(ErrorKind::usage,
                    text(input, ": there is no file in this folder",
                         others.empty() ? "" : " but what is passed over: ", others),
                    "Name a file to have it read, whatever its name.");
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
}

void InputFiles::add_listed(const std::string& list) {
    if (list != "-") refuse_device(list, "--files-from", true);
    std::ifstream lines(list == "-" ? "/dev/stdin" : list);
    if (!lines) throw Error(ErrorKind::io, text("cannot open ", list));
    for (std::string line; std::getline(lines, line);) {
        if (!line.empty()) add(line);
    }
}

void InputFiles::shuffle() {
    auto key = [](const std::string& path) { return std::pair(hash64(path), path); };
    std::ranges::sort(files, {}, key);
}
