#include "llmc/cli/named_data.h"

#include <filesystem>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/data/mixture.h"
#include "llmc/io/file.h"

namespace {

DataPatterns patterns_of(const std::string& folder) { return {folder + "/*train*.bin", folder + "/*val*.bin"}; }

bool is_prepared(const std::string& folder) { return !glob_files(patterns_of(folder).train).empty(); }

std::string listed(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);
    return list;
}

}   // namespace

DataPatterns find_named_data(const std::string& name, const std::string& root) {
    DataPatterns all;
    for (const DataSource& source : weighted_list("--data", name)) {
        const DataPatterns found = find_named_data(source.pattern, root);
        const char* const comma = all.train.empty() ? "" : ",";
        all.train += text(comma, found.train, ":", source.words);
        all.val += text(comma, found.val, ":", source.words);
    }
    if (!all.train.empty()) return all;
    const bool is_folder = name.find('/') != std::string::npos;
    if (const std::string own = is_folder ? name : root + "/" + name; !name.empty() && is_prepared(own)) {
        return patterns_of(own);
    }
    std::vector<std::string> there, matching;
    std::error_code unknown;
    if (std::filesystem::is_directory(root, unknown)) {
        for (const std::string& folder : real_files().list(root)) {
            if (!is_prepared(root + "/" + folder)) continue;
            there.push_back(folder);
            if (!is_folder && !name.empty() && folder.find(name) != std::string::npos) matching.push_back(folder);
        }
    }
    if (matching.size() == 1) return patterns_of(root + "/" + matching[0]);
    throw Error(ErrorKind::usage,
                matching.empty() ? text("--data ", name, ": there are no training shards in ",
                                        is_folder ? name : text(root, "/", name))
                                 : text("--data ", name, ": could be each of ", listed(matching)),
                text("Prepare them with data/NAME.sh; ",
                     there.empty() ? "none are there" : "there are: " + listed(there), "."));
}
