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
    std::string prompt = {};   // empty: what follows an end-of-text token
};

// The ids of a text to go on from, special tokens by their names; of an empty one the end-of-text token. Error(usage)
// where the tokenizer can only turn tokens into text.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

class Sampler {
public:
    // Without a tokenizer ids below 256 are shown as bytes and others as <id>; bytes of the prompt are then ids.
    // Error(usage): encode_prompt().
    Sampler(Step& step, Arena& arena, const std::optional<Tokenizer>& tokenizer, const SamplerOptions& options);

    // The prompt and what follows it. A function of the weights, the seed, `step` and `number`.
    std::string sample(int step, int number = 0);

private:
    std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

    Step& step_;
    const std::optional<Tokenizer>& tokenizer_;
    SamplerOptions options_;
    std::vector<std::int32_t> prompt_;
    int window_;                    // tokens the model sees at once
    DeviceBuffer<floatX> logits_;   // of one position
};
