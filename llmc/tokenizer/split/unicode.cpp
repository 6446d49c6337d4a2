#include "llmc/tokenizer/split/unicode.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>

#include "llmc/tokenizer/split/code_set.h"

namespace {

struct CharKind {
    const char* category;   // Unicode's general category
    bool alphabetic, uppercase, lowercase;
};
struct Script {
    const char* name;
    const char* lengths;
};
#include "llmc/tokenizer/split/unicode_table.inc"

const CodeSet white_space = {{'\t', '\r'},     {' ', ' '},       {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
                             {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};

// Calls function(range, kind) for the runs of the table.
template <class Function>
void for_each_run(Function function) {
    std::uint32_t first = 0;
    for (const char* at = char_runs; *at != 0;) {
        const char letter = *at++;
        const CharKind& kind = char_kinds[letter >= 'a' ? letter - 'a' : letter - 'A' + 26];
        char* end = nullptr;
        const std::uint32_t count = std::isdigit(*at) ? static_cast<std::uint32_t>(std::strtoul(at, &end, 10)) : 1;
        if (end != nullptr) at = end;
        function(CodeRange{first, first + count - 1}, kind);
        first += count;
    }
}

void append(CodeSet& set, CodeRange range) {
    if (!set.empty() && set.back().last + 1 >= range.first) {
        set.back().last = std::max(set.back().last, range.last);
    } else {
        set.push_back(range);
    }
}

template <class Condition>
CodeSet all_with(Condition condition) {
    CodeSet set;
    for_each_run([&](CodeRange range, const CharKind& kind) {
        if (condition(kind)) append(set, range);
    });
    return set;
}

// Returns the characters of a category, or of those that begin with its one letter.
CodeSet of_category(std::string_view name) {
    return all_with([&](const CharKind& kind) { return std::string_view(kind.category).starts_with(name); });
}

CodeSet of_script(const Script& script) {
    CodeSet set;
    std::uint32_t next = 0;
    char* at = const_cast<char*>(script.lengths);
    while (*at != 0) {
        const std::uint32_t first = next + static_cast<std::uint32_t>(std::strtoul(at, &at, 10));
        next = first + static_cast<std::uint32_t>(std::strtoul(at, &at, 10));
        set.push_back({first, next - 1});
        if (*at == ' ') at++;
    }
    return set;
}

CodeSet minus(const CodeSet& a, const CodeSet& b) { return intersect(a, complement(b)); }

CodeSet alphabetic() {
    return all_with([](const CharKind& kind) { return kind.alphabetic; });
}

CodeSet word() { return unite(unite(alphabetic(), of_category("M")), unite(of_category("Nd"), of_category("Pc"))); }

CodeSet graph() { return minus({{0, max_code}}, unite(white_space, unite(of_category("Cc"), of_category("Cn")))); }

// Properties that are no categories and no scripts.
const std::map<std::string_view, CodeSet (*)()>& other_properties() {
    static const std::map<std::string_view, CodeSet (*)()> properties = {
        {"any",
         [] {
             return CodeSet{{0, max_code}};
         }},
        {"ascii",
         [] {
             return CodeSet{{0, 0x7f}};
         }},
        {"assigned", [] { return complement(of_category("Cn")); }},
        {"alpha", alphabetic},
        {"alphabetic", alphabetic},
        {"upper", [] { return all_with([](const CharKind& kind) { return kind.uppercase; }); }},
        {"lower", [] { return all_with([](const CharKind& kind) { return kind.lowercase; }); }},
        {"alnum", [] { return unite(alphabetic(), of_category("Nd")); }},
        {"digit", [] { return of_category("Nd"); }},
        {"xdigit",
         [] {
             return CodeSet{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
         }},
        {"punct", [] { return of_category("P"); }},
        {"space", [] { return white_space; }},
        {"whitespace", [] { return white_space; }},
        {"blank",
         [] {
             return unite({{'\t', '\t'}}, of_category("Zs"));
         }},
        {"cntrl", [] { return of_category("Cc"); }},
        {"word", word},
        {"graph", graph},
        {"print", [] { return unite(graph(), of_category("Zs")); }},
    };
    return properties;
}

constexpr std::pair<std::string_view, std::string_view> long_names[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
};

}   // namespace

bool is_in(const CodeSet& set, std::uint32_t code) {
    const auto range = std::ranges::lower_bound(set, code, {}, &CodeRange::last);
    return range != set.end() && range->first <= code;
}

CodeKinds kinds_of(const std::vector<CodeSet>& sets) {
    std::map<std::uint32_t, std::vector<std::size_t>> changes;   // sets that begin or end at a code point
    changes[0];
    for (std::size_t i = 0; i < sets.size(); i++) {
        for (const CodeRange range : sets[i]) {
            changes[range.first].push_back(i);
            if (range.last < max_code) changes[range.last + 1].push_back(i);
        }
    }
    CodeKinds kinds;
    kinds.by_code.resize(max_code + 1);
    std::vector<bool> inside(sets.size());
    for (auto change = changes.begin(); change != changes.end(); ++change) {
        for (const std::size_t i : change->second) inside[i] = !inside[i];
        const auto kind = kinds.by_sets.try_emplace(inside, static_cast<std::uint8_t>(kinds.by_sets.size())).first;
        const auto behind = std::next(change);
        const auto end = behind == changes.end() ? kinds.by_code.end() : kinds.by_code.begin() + behind->first;
        std::fill(kinds.by_code.begin() + change->first, end, kind->second);
    }
    return kinds;
}

CodeSet unite(const CodeSet& a, const CodeSet& b) {
    CodeSet sorted = a, set;
    sorted.insert(sorted.end(), b.begin(), b.end());
    std::ranges::sort(sorted, {}, &CodeRange::first);
    for (const CodeRange range : sorted) append(set, range);
    return set;
}

CodeSet complement(const CodeSet& set) {
    CodeSet rest;
    std::uint32_t next = 0;
    for (const CodeRange range : set) {
        if (range.first > next) rest.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (next <= max_code) rest.push_back({next, max_code});
    return rest;
}

CodeSet intersect(const CodeSet& a, const CodeSet& b) { return complement(unite(complement(a), complement(b))); }

std::optional<CodeSet> unicode_property(const std::string& name) {
    std::string plain;
    for (const char c : name) {
        if (c != ' ' && c != '-' && c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (const auto other = other_properties().find(plain); other != other_properties().end()) return other->second();
    for (const Script& script : scripts) {
        if (plain == script.name) return of_script(script);
    }
    for (const auto& [long_name, category] : long_names) {
        if (plain == long_name) return of_category(category);
        std::string short_name(category);
        short_name[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(short_name[0])));
        if (plain == short_name) return of_category(category);
    }
    return std::nullopt;
}

bool is_word_character(std::uint32_t code) {
    static const CodeSet words = unite(word(), {{0x200c, 0x200d}});   // and the two joiners
    const auto range = std::ranges::lower_bound(words, code, {}, &CodeRange::last);
    return range != words.end() && range->first <= code;
}

const CharTable& CharTable::get() {
    static const CharTable table;
    return table;
}

CharTable::CharTable() {
    std::vector<CharClass> flat(block_count * 256, CharClass::other);
    const auto fill = [&](CodeRange range, CharClass char_class) {
        std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, char_class);
    };
    for_each_run([&](CodeRange range, const CharKind& kind) {
        if (kind.category[0] == 'L') fill(range, CharClass::letter);
        if (kind.category[0] == 'N') fill(range, CharClass::number);
    });
    for (const CodeRange range : white_space) fill(range, CharClass::space);
    std::size_t distinct = 0;
    for (std::size_t block = 0; block < block_count; block++) {
        const CharClass* classes = flat.data() + block * 256;
        std::size_t same = 0;
        while (same < distinct && std::memcmp(classes_[same], classes, 256) != 0) same++;
        if (same == distinct) std::memcpy(classes_[distinct++], classes, 256);
        block_[block] = static_cast<std::uint16_t>(same);
    }
}

CodeSet cased_beyond_ascii() {
    CodeSet cased{{0x345, 0x345}};   // a mark that upper case makes a letter
    for (const char* name : {"Lu", "Ll", "Lt", "Upper", "Lower"}) cased = unite(cased, *unicode_property(name));
    return intersect(cased, {{0x80, max_code}});
}
