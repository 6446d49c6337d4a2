#include "llmc/data/data_files.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/io/file.h"

namespace fs = std::filesystem;

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns true if the word stands in the name with no letter beside it.
bool has_word(const std::string& name, const std::string& word) {
    for (std::size_t begin = name.find(word); begin != std::string::npos; begin = name.find(word, begin + 1)) {
        const std::size_t end = begin + word.size();
        if ((begin == 0 || !is_letter(name[begin - 1])) && (end == name.size() || !is_letter(name[end]))) return true;
    }
    return false;
}

// The split that a file's name says; empty: it is no shard.
std::string split_of_name(const std::string& flag, const std::string& folder, const std::string& name) {
    if (!name.ends_with(".bin")) return "";
    const bool trains = has_word(name, "train"), validates = has_word(name, "val");
    if (trains != validates) return trains ? "train" : "val";
    const bool says_something = name.find("train") != std::string::npos || name.find("val") != std::string::npos;
    if (!says_something) return "";
    throw Error(ErrorKind::bad_data,
                text(flag, " ", folder, ": ", name, " can be training or validation data: ",
                     trains ? "its name has both words" : "neither word stands alone in its name", ", and there is no ",
                     manifest_file_name),
                "Name it with one of the words train and val, as in web_train_000000.bin, or give patterns instead: "
                "--train-data 'FOLDER/...' --val-data 'FOLDER/...'.");
}

}   // namespace

std::string split_of_option(const std::string& flag) { return flag.starts_with("--val-data") ? "val" : "train"; }

std::vector<std::string> shards_of_folder(const std::string& flag, const std::string& folder,
                                          const std::string& split) {
    std::vector<std::string> shards;
    if (has_entry(real_files(), folder, manifest_file_name)) {
        for (const ShardInfo& shard : read_manifest(real_files(), folder).shards) {
            if (shard.split == split) shards.push_back((fs::path(folder) / shard.file).string());
        }
    } else {
        for (const std::string& name : real_files().list(folder)) {
            if (split_of_name(flag, folder, name) == split) shards.push_back((fs::path(folder) / name).string());
        }
    }
    std::ranges::sort(shards);
    return shards;
}

std::vector<std::string> find_data_files(const std::string& flag, const std::string& pattern) {
    std::error_code unknown;
    if (fs::is_directory(pattern, unknown)) return shards_of_folder(flag, pattern, split_of_option(flag));
    return glob_files(pattern);
}

std::vector<std::string> data_files(const std::string& flag, const std::string& pattern) {
    std::error_code unknown;
    if (!fs::is_directory(pattern, unknown)) return matching_files(flag, pattern);
    std::vector<std::string> shards = find_data_files(flag, pattern);
    if (!shards.empty()) return shards;
    const bool trains = split_of_option(flag) == "train";
    throw Error(
        ErrorKind::io,
        text(flag, " ", pattern, ": there are no ", trains ? "training" : "validation", " shards in this folder"),
        trains ? "Check the path, or prepare the data with the tokenize tool."
               : "Prepare the data with --val-fraction, --val-tokens or --val-files of the tokenize tool, name "
                 "other --val-data, or do without: --val-every 0.");
}
