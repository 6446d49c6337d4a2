#include "llmc/kernels/rows/token_groups.h"

TokenGroupsView TokenGroups::view(const int* base) const {
    const int* start = base ? base : data.data();
    return {start, start + positions, start + positions + groups, groups, long_groups, positions};
}

// Groups by a counting sort: linear in tokens and vocabulary, and stable, so positions stay ascending within a token.
TokenGroups group_tokens(std::span<const int> tokens, int vocab_size, int first_token) {
    std::vector<int> next(static_cast<std::size_t>(vocab_size), 0);   // first the counts, then each token's next place
    auto owned = [&](int token) { return token >= first_token && token - first_token < vocab_size; };
    struct Next {
        int group = 0, begin = 0;
    } of_long, of_short;   // the next group and where it begins
    TokenGroups result;
    for (int token : tokens) {
        if (!owned(token)) continue;
        const int count = ++next[token - first_token];
        if (count == 1) result.groups++;
        if (count == kShortGroup + 1) of_short.group++, of_short.begin += kShortGroup;   // short groups follow this one
        if (count > kShortGroup) of_short.begin++;
        result.positions++;
    }
    result.long_groups = of_short.group;
    result.data.resize(static_cast<std::size_t>(result.positions + 2 * result.groups + 1));
    int* order = result.data.data();
    int* token_of = order + result.positions;
    int* starts = token_of + result.groups;
    for (int v = 0; v < vocab_size; v++) {
        const int count = next[v];
        if (count == 0) continue;
        Next& here = count > kShortGroup ? of_long : of_short;
        token_of[here.group] = first_token + v;
        starts[here.group++] = here.begin;
        next[v] = here.begin;
        here.begin += count;
    }
    starts[result.groups] = result.positions;
    for (std::size_t i = 0; i < tokens.size(); i++) {
        if (owned(tokens[i])) order[next[tokens[i] - first_token]++] = static_cast<int>(i);
    }
    return result;
}
