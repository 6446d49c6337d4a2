// Draws the next token from a model's logits.
#pragma once

#include <span>

struct TokenChoice {
    float temperature = 1.0f;   // 0: always the likeliest token, the first among equals
    int top_k = 0;              // keeps only this many of the likeliest; 0: all
    float top_p = 1.0f;         // then keeps only the likeliest whose probabilities add up to this; 1: all
};

// Returns the token that `coin`, uniform in (0, 1], picks from the softmax of logits / temperature, after top_k and
// then top_p (Holtzman et al., "The curious case of neural text degeneration", 2020) have set the other probabilities
// to 0. Among equally likely tokens the first ones are kept.
int choose_token(std::span<const float> logits, const TokenChoice& choice, float coin);
