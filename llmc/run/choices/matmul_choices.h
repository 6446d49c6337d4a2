// The matmul algorithms of a run, kept in its checkpoints: which one cuBLASLt's heuristic, or a search, chose can
// differ from one process to the next, and with it the last bits of every result. A resumed run uses those of the run
// it continues.
//
// matmul.json: {"device": "...", "cublaslt": 130000, "algorithms": [{"problem": "...", "workspace_bytes": 256,
//               "words": [8 integers, the cublasLtMatmulAlgo_t as it is]}, ...]}
// Algorithms mean something only to the same library on the same type of device.
#pragma once

#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/kernels/matmul/matmul.h"

inline constexpr const char* kMatmulChoicesFile = "matmul.json";

// The file's content for the algorithms in use.
std::string matmul_choices_text(const Matmul& matmul);

// Gives `matmul` the algorithms of such a content, which `where` names in messages. Returns an empty string, or why
// they are left unused (another device or library): then they are chosen anew. Error(bad_data) for what is not such a
// content.
std::string use_matmul_choices(const std::string& content, const std::string& where, Matmul& matmul);

// The same from a file; a checkpoint without one (of an older version) is no error.
std::string restore_matmul_choices(const FileSystem& files, const std::string& path, Matmul& matmul);

// One content of those of all ranks: of each problem the choice of the lowest rank that has it. Error(usage) where
// machines differ.
std::string merged_matmul_choices(const std::vector<std::string>& by_rank);
