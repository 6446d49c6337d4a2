// Cuts a text at the matches of a regular expression (split_regex.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

// A match, which may be empty, or the text between two matches.
struct PatternPart {
    std::uint32_t end = 0;   // it begins where the one before ends
    bool is_match = false;
};

class PatternParts {
public:
    virtual ~PatternParts() = default;
    // Starts on a text: valid UTF-8, below 4 GiB, kept alive and unchanged by the caller.
    virtual void begin(std::string_view text) = 0;
    virtual bool next(PatternPart& part) = 0;   // false behind the last
};

// Throws Error as make_splitter does.
std::unique_ptr<PatternParts> make_pattern_parts(const std::string& regex);
