// Saves a run's matmul algorithms in its checkpoints. cuBLASLt's heuristic, or a search, can choose another one in the
// next process, which changes the last bits of every result. So a resumed run uses the algorithms of the run it
// continues.
//
// matmul.json: {"device": "...", "cublaslt": 130000, "algorithms": [{"problem": "...", "workspace_bytes": 256,
//               "words": [8 integers, those of MatmulAlgorithm in matmul.h]}, ...]}
// An algorithm is valid only for the same library on the same type of device.
#pragma once

#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/run/stopping/agreement.h"

inline constexpr const char* kMatmulChoicesFile = "matmul.json";

// Returns the file's content for the algorithms in use.
std::string matmul_choices_text(const Matmul& matmul);

// Makes `matmul` use the algorithms in `content`; `where` names it in messages. Returns an empty string, or the reason
// why they stay unused (another device or library), and then they are chosen anew. Throws Error(bad_data) for malformed
// content.
std::string use_matmul_choices(const std::string& content, const std::string& where, Matmul& matmul);

// Reads the file and calls use_matmul_choices().
std::string restore_matmul_choices(const FileSystem& files, const std::string& path, Matmul& matmul);

// Merges the contents of all ranks: each problem gets the choice of the lowest rank that has it. Throws Error(usage) if
// the machines differ.
std::string merged_matmul_choices(const std::vector<std::string>& by_rank);

// Makes all ranks use the same algorithms, which checkpoints then hold.
class SharedMatmulChoices {
public:
    SharedMatmulChoices(Matmul& matmul, Agreement& agreement) : matmul_(matmul), agreement_(agreement) {}

    // Agrees on the algorithms of problems that are new since the last call: for each that of the lowest rank that has
    // it. Returns the content of matmul.json. Collective.
    const std::string& agree();

private:
    Matmul& matmul_;
    Agreement& agreement_;
    std::string content_;
};
