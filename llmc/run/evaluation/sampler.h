// Text written by the model as it is now, for a person to read during training.
//
// Every token costs a forward pass of all tokens before it (there is no key/value cache): meant for a few dozen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/run/step.h"
#include "llmc/tokenizer/tokenizer.h"

struct SamplerOptions {
    int tokens = 64;
    float temperature = 1.0f;   // 0: always the likeliest token, the first of equals
    std::uint64_t seed = 42;
};

class Sampler {
public:
    // Without a tokenizer ids below 256 are shown as bytes and others as <id>.
    Sampler(Step& step, Arena& arena, const std::optional<Tokenizer>& tokenizer, const SamplerOptions& options);

    // A text that begins after an end-of-text token. A function of the weights, the seed and `step`.
    std::string sample(int step);

private:
    std::vector<float> next_logits(const std::vector<int>& ids);

    Step& step_;
    const std::optional<Tokenizer>& tokenizer_;
    SamplerOptions options_;
    int window_;                    // tokens the model sees at once
    DeviceBuffer<floatX> logits_;   // of one position
};
