// The manifest of a checkpoint (checkpoint.h has its format), and whether a folder is what its manifest says.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/json.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"

inline constexpr const char* format_name = "train_gpt checkpoint";
inline constexpr int format_version = 3;
inline constexpr const char* manifest_name = "manifest.json";

// Returns the step in a checkpoint's name, or nothing if it is no such name.
std::optional<int> step_of(const std::string& name);

// Returns the manifest's description of a tensor.
Json type_and_shape(const TensorEntry& tensor);

// Returns the first damage in this rank's part of the files (find_damage), or an empty string.
std::string damage_of_checkpoint(const FileSystem& files, const std::string& path, CheckpointUse use, int rank,
                                 int ranks);
