// Drawing the next token from a model's logits.
#pragma once

#include <span>

struct TokenChoice {
    float temperature = 1.0f;   // 0: always the likeliest token, the first of equals
    int top_k = 0;              // only the so many likeliest; 0: all
    float top_p = 1.0f;         // and of these only the likeliest whose probabilities add up to this; 1: all
};

// The token that `coin`, uniform in (0, 1], picks by the softmax of logits / temperature, after the tokens that the
// choice leaves out have been given probability 0: first by top_k, then by top_p (Holtzman et al., "The curious case of
// neural text degeneration", 2020). Of tokens equally likely the first ones are kept.
int choose_token(std::span<const float> logits, const TokenChoice& choice, float coin);
