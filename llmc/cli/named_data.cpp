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

bool is_prepared(const std::string& folder) {
    return is_folder(folder) && !shards_of_folder("--data", folder, "train").empty();
}

// Others than the folder that is asked for may be anything.
bool seems_prepared(const std::string& folder) {
    try {
        return is_prepared(folder);
    } catch (const Error&) {
        return true;
    }
}

std::string listed(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);
    return list;
}

std::string with_slash(const std::string& folder) { return folder.ends_with('/') ? folder : folder + "/"; }

std::string find_folder(const std::string& name, const std::string& root) {
    const bool is_path = name.find('/') != std::string::npos;
    if (const std::string own = is_path ? name : root + "/" + name; !name.empty() && is_prepared(own)) {
        return with_slash(own);
    }
    std::vector<std::string> there, matching;
    if (is_folder(root)) {
        for (const std::string& folder : real_files().list(root)) {
            if (!seems_prepared(root + "/" + folder)) continue;
            there.push_back(folder);
            if (!is_path && !name.empty() && folder.find(name) != std::string::npos) matching.push_back(folder);
        }
    }
    if (matching.size() == 1) return with_slash(root + "/" + matching[0]);
    throw Error(ErrorKind::usage,
                matching.empty() ? text("--data ", name, ": there are no training shards in ",
                                        is_path ? name : text(root, "/", name))
                                 : text("--data ", name, ": could be each of ", listed(matching)),
                text("Prepare them with data/NAME.sh; ",
                     there.empty() ? "none are there" : "there are: " + listed(there), "."));
}

}   // namespace

std::string find_named_data(const std::string& name, const std::string& root) {
    const bool is_there = !name.empty() && is_folder(name.find('/') != std::string::npos ? name : root + "/" + name);
    std::string list;
    if (!is_there) {   // else it is no list, whatever signs are in its name
        for (const DataSource& source : weighted_list("--data", name)) {
            list += text(list.empty() ? "" : ",", find_folder(source.pattern, root), ":", source.words);
        }
    }
    return list.empty() ? find_folder(name, root) : list;
}
