#include "llmc/kernels/token_groups.h"


TokenGroupsView TokenGroups::view(const int* base) const {
    const int* start = base ? base : data.data();
    return {start, start + positions, start + positions + groups, groups, positions};
}

// A counting sort: linear in tokens and vocabulary, and stable, so positions stay ascending within a token.
TokenGroups group_tokens(std::span<const int> tokens, int vocab_size, int first_token) {
    std::vector<int> next(static_cast<std::size_t>(vocab_size), 0);   // first the counts, then where each token goes
    auto owned = [&](int token) { return token >= first_token && token - first_token < vocab_size; };
    TokenGroups result;
    for (int token : tokens) {
        if (!owned(token)) continue;
        if (next[token - first_token]++ == 0) result.groups++;
        result.positions++;
    }
    result.data.resize(static_cast<std::size_t>(result.positions + 2 * result.groups + 1));
    int* order = result.data.data();
    int* token_of = order + result.positions;
    int* starts = token_of + result.groups;
    int begin = 0, group = 0;
    for (int v = 0; v < vocab_size; v++) {
        int count = next[v];
        if (count == 0) continue;
        token_of[group] = first_token + v;
        starts[group++] = begin;
        next[v] = begin;
        begin += count;
    }
    starts[group] = begin;
    for (std::size_t i = 0; i < tokens.size(); i++) {
        if (owned(tokens[i])) order[next[tokens[i] - first_token]++] = static_cast<int>(i);
    }
    return result;
}
