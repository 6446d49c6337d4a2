// Generates text with the current weights, for a person to read during training.
//
// Every token costs a forward pass over all tokens before it (there is no key/value cache): meant for a few dozen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/run/step/step.h"
#include "llmc/tokenizer/tokenizer.h"

struct SamplerOptions {
    int tokens = 64;
    float temperature = 1.0f;   // 0: always the likeliest token, the first among equals
    std::uint64_t seed = 42;
    std::string prompt = {};   // empty: starts with an end-of-text token
};

// Encodes a prompt (text_ids.h). An empty one becomes the tokens in front of a text, else the end-of-text token. Throws
// Error(usage) if the tokenizer can only decode.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

class Sampler {
public:
    // Without a tokenizer, ids below 256 are shown as bytes and others as <id>, and the prompt's bytes are its ids.
    // Throws as encode_prompt().
    Sampler(Step& step, Arena& arena, const std::optional<Tokenizer>& tokenizer, const SamplerOptions& options);

    // Returns the prompt and its continuation: a function of the weights, the seed, `step` and `number`.
    std::string sample(int step, int number = 0);

private:
    std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

    Step& step_;
    const std::optional<Tokenizer>& tokenizer_;
    SamplerOptions options_;
    std::vector<std::int32_t> prompt_;
    int window_;                    // tokens that the model sees at once
    DeviceBuffer<floatX> logits_;   // one position
};
