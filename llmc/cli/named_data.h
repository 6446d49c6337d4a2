// Data by the name of the script that prepared it: what data/NAME.sh leaves in data/NAME.
#pragma once

#include <string>

// The folder of token shards that --data `name` means, with a "/" at its end, as --train-data and --val-data take it
// (data_files.h): of that name in `root`, else the only one there whose name contains it (fineweb: fineweb10B). A name
// with a "/" is a folder itself. It has shards of `split` ("train" or "val"). Of a mixture, NAME:WEIGHT,..., the list
// of all. Error(usage) where there is none, or several, naming those there; Error(bad_data) where nothing says which of
// its files are of that split, as in a folder with a manifest.json of another kind. Such a folder is meant by a part of
// its name only where no other is.
std::string find_named_data(const std::string& name, const std::string& split, const std::string& root = "data");
