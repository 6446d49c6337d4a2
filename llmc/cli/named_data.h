// Data by the name of the script that prepared it: what data/NAME.sh leaves in data/NAME.
#pragma once

#include <string>

struct DataPatterns {
    std::string train, val;
};

// The token files of `name` in `root`: of the folder of that name, else of the only one whose name contains it
// (fineweb: fineweb10B). A name with a "/" is a folder itself. Error(usage) where there is none, or several, naming
// those there. Of a mixture, NAME:WEIGHT,..., the patterns of all in one list.
DataPatterns find_named_data(const std::string& name, const std::string& root = "data");
