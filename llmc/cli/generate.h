// `train_gpt generate`: writes text with a model, after a prompt, token by token.
//
// The model is whatever --model takes; a size by name has random weights, which shows speed. The tokenizer lies beside
// it, or is named. When a text has filled the model's positions, the model reads its last half again and goes on from
// there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/model/decoder.h"
#include "llmc/run/evaluation/choose_token.h"
#include "llmc/run/options/options.h"

// Settings of continue_text().
struct Continuation {
    int tokens = 100;   // at most
    TokenChoice choice = {};
    std::uint64_t seed = 42;   // same seed, same text
    int choices = 0;           // only ids below it may be drawn; 0: all of the vocabulary
    std::function<bool(int token)> ends = [](int) {
        return false;
    };   // true for a token that ends the text; it is not passed on
};

// Reads the prompt, at least one token, and gives each new token to `take` as it is drawn. Returns how many.
int continue_text(Decoder& decoder, std::vector<std::int32_t> prompt, const Continuation& how,
                  const std::function<void(int token)>& take);

// Takes the whole UTF-8 characters off the front of `pending` and returns them, with U+FFFD for bytes that are no
// UTF-8. With `last`, nothing is left.
std::string take_whole_characters(std::string& pending, bool last = false);

// Runs the verb: the prompt and its continuation go to standard output, the speed to standard error. Returns the exit
// code.
int generate(const Options& options);
