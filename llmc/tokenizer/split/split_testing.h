// Splits texts for tests.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/tokenizer/split/split.h"

// Returns the pieces of a text, or of what a splitter makes of it.
inline std::vector<std::string> pieces_of(PieceSplitter& splitter, std::string_view text) {
    std::vector<std::string> pieces;
    std::uint32_t ends[split_capacity], begin = 0;
    text = splitter.begin(text);
    while (const std::size_t count = splitter.next(ends, split_capacity)) {
        for (std::size_t i = 0; i < count; i++) {
            pieces.emplace_back(text.substr(begin, ends[i] - begin));
            begin = ends[i];
        }
    }
    CHECK(begin == text.size());
    return pieces;
}

// Returns true if this build can split by any expression; else says so.
inline bool has_pcre2() {
    try {
        make_regex_splitter("a");
        return true;
    } catch (const Error& problem) {
        MESSAGE("skipped: ", problem.message());
        return false;
    }
}
