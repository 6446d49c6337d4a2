// The golden data of dev/reference/ (made by an independent implementation) in the shapes of this program. Tests only;
// they are run from the root of the repository.
#pragma once

#include <string>
#include <vector>

#include "dev/test/reference/reference_gpt_testing.h"
#include "llmc/base/ensure.h"
#include "llmc/io/safetensors.h"

struct GoldenGpt {
    ModelConfig config;
    int B = 0, T = 0;
    std::vector<int> tokens, targets;   // (B, T)
    std::vector<Doubles> parameters;    // indexed as the ParamTable, our orientation, padding rows zero; exact in bf16
    std::vector<Doubles> gradients;
    Doubles logits, losses;   // (B, T, V), (B, T)
    double loss = 0;
};

// A tensor of a Hugging Face file in our storage: [out, in] and padded.
inline Doubles from_hugging_face(const Doubles& values, const ParamInfo& param) {
    const auto rows = static_cast<std::size_t>(param.exported_rows()),
               cols = static_cast<std::size_t>(param.tensor.cols);
    ENSURE(values.size() == rows * cols, param.name, " has ", values.size(), " values");
    Doubles result(static_cast<std::size_t>(param.tensor.elements()), 0.0);
    for (std::size_t row = 0; row < rows; row++) {
        for (std::size_t col = 0; col < cols; col++) {
            result[row * cols + col] = param.hf_transposed ? values[col * rows + row] : values[row * cols + col];
        }
    }
    return result;
}

inline GoldenGpt load_golden() {
    const SafetensorsFile file(real_files(), "dev/reference/golden_gpt.safetensors");
    auto size = [&](const char* key) { return std::stoll(file.metadata().at(key)); };
    GoldenGpt golden;
    golden.config =
        custom_model_config(size("layers"), size("heads"), size("channels"), size("max_seq_len"), size("vocab_size"));
    auto ids = [&](const char* name) {
        const std::vector<std::int64_t> wide = file.read_as<std::int64_t>(name);
        return std::vector<int>(wide.begin(), wide.end());
    };
    golden.B = static_cast<int>(file.entry("tokens").shape[0]);
    golden.T = static_cast<int>(file.entry("tokens").shape[1]);
    golden.tokens = ids("tokens");
    golden.targets = ids("targets");
    golden.logits = file.read_as<double>("logits");
    golden.losses = file.read_as<double>("losses");
    golden.loss = file.read_as<double>("loss").front();
    const ParamTable table(golden.config);
    for (const ParamInfo& param : table.all()) {
        golden.parameters.push_back(from_hugging_face(file.read_as<double>(param.name), param));
        golden.gradients.push_back(from_hugging_face(file.read_as<double>("grad." + param.name), param));
    }
    return golden;
}
