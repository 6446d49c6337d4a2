// Which files hold the tokens that --train-data and --val-data name.
//
// A pattern ("data/web/*train*.bin") means the files that match it. A folder means its shards of that split: those
// that its manifest lists so, whatever their names. Without a manifest the whole words of a name say it, as in llm.c's
// tiny_shakespeare_train_000000.bin and fineweb_val_000000.bin.
#pragma once

#include <string>
#include <vector>

// The split that an option is about, in which a mixture's source may follow: "val" for --val-data, else "train".
std::string split_of_option(const std::string& flag);

// Returns the shards of a split ("train", "val") in a folder, sorted by name. Throws Error(bad_data) where the manifest
// is none, and where without one a name could mean either split; `flag` is the option that names the folder, for
// messages.
std::vector<std::string> shards_of_folder(const std::string& flag, const std::string& folder, const std::string& split);

// Returns the files behind a pattern or a folder, sorted by name; none where nothing matches.
std::vector<std::string> find_data_files(const std::string& flag, const std::string& pattern);

// Likewise, but throws Error(io) where nothing matches, saying why.
std::vector<std::string> data_files(const std::string& flag, const std::string& pattern);
