// The tokens of a batch grouped by value, made on the host: what lets the embedding's backward pass add each row of the
// gradient in one place and in a fixed order, without atomics.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

// A group of more positions is long: more than one thread adds them. Long groups come first, for they take longest.
inline constexpr int kShortGroup = 16;

// Where the three arrays of a TokenGroups lie, on the device.
struct TokenGroupsView {
    const int* order = nullptr;    // (positions) indices into the batch's tokens: by group, then ascending
    const int* tokens = nullptr;   // (groups) the token of each group: of long groups, ascending, then of the others
    const int* starts = nullptr;   // (groups + 1) where each group begins in `order`
    int groups = 0;
    int long_groups = 0;   // of these
    int positions = 0;
};

struct TokenGroups {
    std::vector<int> data;   // order, tokens, starts, one after the other: one upload
    int groups = 0;
    int long_groups = 0;
    int positions = 0;

    // `base` is where `data` was uploaded to; the host's own data when null.
    TokenGroupsView view(const int* base = nullptr) const;
};

// The most ints a batch of `positions` tokens can need: the size of the device buffer.
inline std::size_t token_groups_capacity(std::size_t positions) { return 3 * positions + 1; }

// Tokens outside [first_token, first_token + vocab_size) are left out: another rank owns them.
TokenGroups group_tokens(std::span<const int> tokens, int vocab_size, int first_token = 0);
