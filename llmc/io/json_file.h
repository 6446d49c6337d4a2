// Reads a JSON file.
#pragma once

#include <string>

#include "llmc/base/json.h"
#include "llmc/io/file.h"

// Reads a small JSON file whose content is an object. Throws Error(bad_data) with the path, and the byte where it is no
// JSON.
Json read_json_file(const FileSystem& files, const std::string& path);
