#include "llmc/cli/named_data.h"

#include <filesystem>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/data/data_files.h"
#include "llmc/data/mixture.h"
#include "llmc/io/file.h"

namespace {

bool is_folder(const std::string& path) {
    std::error_code unknown;
    return std::filesystem::is_directory(path, unknown);
}

bool is_prepared(const std::string& folder, const std::string& split) {
    return is_folder(folder) && !shards_of_folder("--data", folder, split).empty();
}

// Folders in `root` whose name contains a text.
struct Neighbours {
    std::vector<std::string> prepared, broken;   // broken: one cannot say what is in them
};

Neighbours neighbours(const std::string& root, const std::string& part, const std::string& split) {
    Neighbours result;
    if (!is_folder(root)) return result;
    for (const std::string& folder : real_files().list(root)) {
        if (folder.find(part) == std::string::npos) continue;
        try {
            if (is_prepared(root + "/" + folder, split)) result.prepared.push_back(folder);
        } catch (const Error&) {
            result.broken.push_back(folder);
        }
    }
    return result;
}

std::string listed(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);
    return list;
}

std::string with_slash(const std::string& folder) { return folder.ends_with('/') ? folder : folder + "/"; }

std::string find_folder(const std::string& name, const std::string& split, const std::string& root) {
    const bool is_path = name.find('/') != std::string::npos;
    if (const std::string own = is_path ? name : root + "/" + name; !name.empty() && is_prepared(own, split)) {
        return with_slash(own);
    }
    Neighbours matching;
    if (!is_path && !name.empty()) matching = neighbours(root, name, split);
    if (matching.prepared.size() == 1) return with_slash(root + "/" + matching.prepared[0]);
    if (matching.prepared.empty() && matching.broken.size() == 1) {
        is_prepared(root + "/" + matching.broken[0], split);   // says what is broken
    }
    const std::vector<std::string>& several = matching.prepared.empty() ? matching.broken : matching.prepared;
    const std::vector<std::string> there = neighbours(root, "", split).prepared;
    const std::string beside = !is_path && !name.empty() && is_folder(name)
                                   ? text("For the folder ./", name, " give --data ./", name, ". ")
                                   : std::string();
    throw Error(ErrorKind::usage,
                several.empty() ? text("--data ", name,
                                       split == "train" ? ": there are no training shards in "
                                                        : ": there are no validation shards in ",
                                       is_path ? name : text(root, "/", name))
                                : text("--data ", name, ": could be each of ", listed(several)),
                text(beside, "Prepare them with data/NAME.sh; ",
                     there.empty() ? "none are there" : "there are: " + listed(there), "."));
}

}   // namespace

std::string find_named_data(const std::string& name, const std::string& split, const std::string& root) {
    const bool is_there = !name.empty() && is_folder(name.find('/') != std::string::npos ? name : root + "/" + name);
    std::string list;
    if (!is_there) {   // else it is no list, whatever signs are in its name
        for (const DataSource& source : weighted_list("--data", name)) {
            list += text(list.empty() ? "" : ",", find_folder(source.pattern, split, root), ":", source.words);
        }
    }
    return list.empty() ? find_folder(name, split, root) : list;
}
