// Groups the tokens of a batch by value, on the host. So the embedding's backward pass can add each row of the gradient
// in one place and in a fixed order, without atomics.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

// Largest size of a short group. More than one thread adds a long group. Long groups come first, because they take
// longest.
inline constexpr int kShortGroup = 16;

// Pointers to the three arrays of a TokenGroups, on the device.
struct TokenGroupsView {
    const int* order = nullptr;    // (positions) indices into the batch's tokens: by group, then ascending
    const int* tokens = nullptr;   // (groups) token of each group: long groups, ascending, then short ones
    const int* starts = nullptr;   // (groups + 1) where each group begins in `order`
    int groups = 0;
    int long_groups = 0;   // how many of the groups are long
    int positions = 0;
};

struct TokenGroups {
    std::vector<int> data;   // order, tokens, starts, one after the other: one upload
    int groups = 0;
    int long_groups = 0;
    int positions = 0;

    // Returns a view of `data` at `base`, where it was uploaded to, or at the host's own copy when null.
    TokenGroupsView view(const int* base = nullptr) const;
};

// Returns the most ints that a batch of `positions` tokens can need: the size of the device buffer.
inline std::size_t token_groups_capacity(std::size_t positions) { return 3 * positions + 1; }

// Groups tokens. Tokens outside [first_token, first_token + vocab_size) are left out: another rank owns them.
TokenGroups group_tokens(std::span<const int> tokens, int vocab_size, int first_token = 0);
