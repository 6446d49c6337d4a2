// `train_gpt generate`: text written by a model, after a prompt, token by token.
//
// The model is whatever --model takes; a size by name has random weights, which shows speed. The tokenizer lies beside
// it, or is named. A text longer than the model's positions is read again from its last half on each time these are
// full, as the model sees no further.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/model/decoder.h"
#include "llmc/run/evaluation/choose_token.h"
#include "llmc/run/options.h"

// How a text goes on.
struct Continuation {
    int tokens = 100;   // at most
    TokenChoice choice = {};
    std::uint64_t seed = 42;   // same seed, same text
    int choices = 0;           // ids that may be drawn: those below; 0: the model's vocabulary
    std::function<bool(int token)> ends = [](int) {
        return false;
    };   // such a token ends the text, and is no part of it
};

// Reads the prompt, at least one token, and gives each new token to `take` as it is drawn. Returns how many.
int continue_text(Decoder& decoder, std::vector<std::int32_t> prompt, const Continuation& how,
                  const std::function<void(int token)>& take);

// What `pending` begins with that is whole characters of UTF-8, taken off it; what is no UTF-8 becomes U+FFFD. With
// `last`, nothing is left.
std::string take_whole_characters(std::string& pending, bool last = false);

// The verb: the prompt and what follows go to standard output, the speed to standard error. Returns the exit code.
int generate(const Options& options);
