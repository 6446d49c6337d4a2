// Sets of code points.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

struct CodeRange {
    std::uint32_t first, last;
    bool operator==(const CodeRange&) const = default;
};

inline constexpr std::uint32_t max_code = 0x10ffff;

// Ranges in order that neither overlap nor touch.
using CodeSet = std::vector<CodeRange>;

CodeSet unite(const CodeSet& a, const CodeSet& b);
CodeSet complement(const CodeSet& set);
CodeSet intersect(const CodeSet& a, const CodeSet& b);
bool is_in(const CodeSet& set, std::uint32_t code);

// Code points that the same sets hold are of one kind.
struct CodeKinds {
    std::map<std::vector<bool>, std::uint8_t> by_sets;   // by whether each set holds them
    std::vector<std::uint8_t> by_code;                   // right only if there are at most 256 kinds
};
CodeKinds kinds_of(const std::vector<CodeSet>& sets);

// Returns the set of a property as Oniguruma's \p{...} names it: a general category (L, Lu, Lowercase_Letter), Alnum
// and the like, or a script of unicode_table.inc. Case, spaces, `-` and `_` do not count. Nothing for any other name.
std::optional<CodeSet> unicode_property(const std::string& name);

// Returns the characters beyond ASCII that, without regard to case, equal others, single or several.
CodeSet cased_beyond_ascii();
