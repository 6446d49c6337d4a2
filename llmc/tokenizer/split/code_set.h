// Sets of code points.
#pragma once

#include <cstdint>
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

// Returns the set of a property as Oniguruma's \p{...} names it: a general category (L, Lu, Lowercase_Letter), Alnum
// and the like, or a script of unicode_table.inc. Case, spaces, `-` and `_` do not count. Nothing for any other name.
std::optional<CodeSet> unicode_property(const std::string& name);
