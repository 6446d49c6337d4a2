#include "llmc/tokenizer/split/oniguruma.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/tokenizer/split/split.h"
#include "llmc/tokenizer/split/split_testing.h"

namespace {

struct Recorded {
    std::string name;
    const char* pattern;
    std::string text;
    std::vector<std::string> pieces;
};

// Pieces of the tokenizers package, version 0.23.3: Split(Regex(pattern), "isolated").pre_tokenize_str(text).
// dev/reference/split_patterns.py compares random patterns with the package.
const Recorded recorded[] = {
    {"o200k (GPT-4o, Llama 4, GPT-OSS)",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It's", " HTTPServer's", " caf\xc3\xa9",
      " \xe6\xbc\xa2\xe5\xad\x97"
      "Ab\xcc\x81",
      " ", "123", "45\xc2\xbd", "\x0d\x0a\x0d\x0a", " \xe1\xa0\x8e", "\xc2\xa0", " /", "x", ".\x0a"}},
    {"tekken (Mistral Nemo)",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It", "'s", " HTTPServer", "'s", " caf\xc3\xa9",
      " \xe6\xbc\xa2\xe5\xad\x97"
      "Ab\xcc\x81",
      " ", "1", "2", "3", "4", "5", "\xc2\xbd", "\x0d\x0a\x0d\x0a", " \xe1\xa0\x8e", "\xc2\xa0", " /", "x", ".\x0a"}},
    {"Qwen 3.5",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It", "'s", " HTTPServer", "'s", " caf\xc3\xa9",
      " \xe6\xbc\xa2\xe5\xad\x97"
      "Ab\xcc\x81",
      " ", "1", "2", "3", "4", "5", "\xc2\xbd", "\x0d\x0a\x0d\x0a", " \xe1\xa0\x8e", "\xc2\xa0", " /", "x", ".\x0a"}},
    {"DeepSeek V3, its last step alone",
     R"re([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It", "'s", " HTTPServer", "'s", " caf\xc3\xa9",
      " \xe6\xbc\xa2\xe5\xad\x97"
      "Ab\xcc\x81",
      " ", "12345\xc2\xbd", "\x0d\x0a\x0d\x0a", " ", "\xe1\xa0\x8e", "\xc2\xa0", " /", "x", ".\x0a"}},
    {"Kimi (intersection of classes, &&)",
     R"re([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It's", " HTTPServer's", " caf\xc3\xa9", " ", "\xe6\xbc\xa2\xe5\xad\x97", "Ab\xcc\x81", " ", "123", "45\xc2\xbd",
      "\x0d\x0a\x0d\x0a", " \xe1\xa0\x8e", "\xc2\xa0", " /", "x", ".\x0a"}},
    {"BLOOM, Viking (a class in a class)",
     R"re( ?[^(\s|[.,!?…。，、।۔،])]+)re",
     "It's HTTPServer's caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97"
     "Ab\xcc\x81 12345\xc2\xbd\x0d\x0a\x0d\x0a \xe1\xa0\x8e\xc2\xa0 /x.\x0a",
     {"It's", " HTTPServer's", " caf\xc3\xa9",
      " \xe6\xbc\xa2\xe5\xad\x97"
      "Ab\xcc\x81",
      " 12345\xc2\xbd", "\x0d\x0a\x0d\x0a", " \xe1\xa0\x8e", "\xc2\xa0", " /x", ".\x0a"}},
    {"an interval repeated again", R"re(\d{1,3}+|\d{2}?)re", "1234567a", {"1234567", "a"}},
    {"exact repeats and a lazy one", R"re((?:a{2}?)b|\d{,2})re", "aab1234b", {"aab", "12", "34", "b"}},
    {"hexadecimal digits, not horizontal space", R"re(\h+)re", "beef\x09g 0F", {"beef", "\x09g ", "0F"}},
    {"nested and intersected classes",
     R"re([a-z&&[^aeiou]]+|[0-3[x-z]&&[^2y]]+)re",
     "strength 0123xyz AEI",
     {"str", "e", "ngth", " ", "01", "2", "3x", "yz", " AEI"}},
    {"POSIX",
     R"re([[:punct:]]+|[[:^alnum:]]+|[[:upper:]]+)re",
     "a$+\xe2\x82\xac"
     "B\xe2\x85\xa0\xe2\x92\xb6.c",
     {"a", "$+\xe2\x82\xac", "B\xe2\x85\xa0\xe2\x92\xb6", ".", "c"}},
    {"words",
     R"re(\w+|[\w])re",
     "x\xc2\xbd\xe2\x80\xbfy\xcc\x81-\xe2\x80\x8d_",
     {"x\xc2\xbd\xe2\x80\xbfy\xcc\x81", "-\xe2\x80\x8d", "_"}},
    {"word boundaries",
     R"re(\b.)re",
     "ab \xc2\xbd"
     "c.d",
     {"a", "b", " ", "\xc2\xbd", "c", ".", "d"}},
    {"line ends",
     R"re(^.|.$)re",
     "ab\x0a"
     "cd\x0a",
     {"a", "b", "\x0a", "c", "d", "\x0a"}},
    {"the end but for one newline",
     R"re(.\Z|\n\z)re",
     "ab\x0a"
     "c\x0a",
     {"ab\x0a", "c", "\x0a"}},
    {"case",
     R"re((?i:k|[r-t]|'d)+)re",
     "kKK\xe2\x84\xaa\xc5\xbf\xc3\x9fRST'Dx",
     {"kKK\xe2\x84\xaa\xc5\xbf", "\xc3\x9f", "RST'D", "x"}},
    {"an option up to the end of its group", R"re(a(?i)b|c)re", "abaBacaCcC", {"ab", "aB", "ac", "aC", "cC"}},
    {"white space",
     R"re(\s+)re",
     "a\xe1\xa0\x8e\xc2\x85\xe2\x80\x8b\xe2\x80\x83\x1c b",
     {"a\xe1\xa0\x8e", "\xc2\x85", "\xe2\x80\x8b", "\xe2\x80\x83", "\x1c", " ", "b"}},
    {"possessive", R"re(a++b|a+?c|\d*+)re", "aabaac12a", {"aab", "aac", "12", "a"}},
    {"a look behind", R"re((?<=\p{Lu})\p{Ll}+|(?<!x)y)re", "ABcdxyy", {"AB", "cdxyy"}},
    {"property names",
     R"re(\p{Uppercase_Letter}+|\p{^Han}|\P{Alpha})re",
     "ABc\xe6\xbc\xa2"
     "1",
     {"AB", "c", "\xe6\xbc\xa2", "1"}},
};

std::string refusal(const std::string& pattern) {
    try {
        translate_oniguruma(pattern);
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::bad_data);
        return problem.message();
    }
    return "";
}

}   // namespace

TEST_CASE("tokenizer_oniguruma: pieces of the tokenizers package") {
    for (const Recorded& each : recorded) {
        try {
            const auto splitter = make_regex_splitter(each.pattern);
            CHECK_MESSAGE(pieces_of(*splitter, each.text) == each.pieces, each.name);
        } catch (const Error& problem) {
            if (problem.kind() != ErrorKind::usage) throw;
            MESSAGE("skipped: ", problem.message());
            return;
        }
    }
}

TEST_CASE("tokenizer_oniguruma: what has no translation is refused by name") {
    const std::vector<std::pair<std::string, std::string>> patterns = {
        {"a\\Gb", "'\\G'"},
        {"(a)\\1", "'\\1'"},
        {"\\X", "'\\X'"},
        {"ab(*LIMIT_MATCH=9)c", "'(*LIMIT_M"},
        {"(?~a)", "'(?~a)'"},
        {"(?x:a b)", "'(?x'"},
        {"\\p{Klingon}", "'\\p{Klingon}'"},
        {"\\xe9", "'\\xe9'"},
        {"[\\w--a]", "'\\w-'"},
        {"[[:letters:]]", "'[:letters"},
        {"[a&&]", "an empty side of '&&'"},
        {"(?i:gro\xc3\x9f"
         "e)",
         "a letter beyond ASCII without regard to case"},
        {"(?i:mass)", "'ss' without regard to case"},
        {"^*", "a repeat of an anchor"},
        {"a|*", "a repeat of nothing"},
        {"a{70000}", "a repeat of more than 65535"},
        {"(a", "a '(' without its ')'"},
        {"a)", "a ')' without its '('"},
        {"[a", "a '[' without its ']'"},
        {std::string(100000, '('), "too many groups"},
        {std::string(100000, '['), "too many classes"},
    };
    for (const auto& [pattern, construct] : patterns) {
        const std::string message = refusal(pattern);
        CHECK_MESSAGE(message.find(construct) != std::string::npos, construct, ": ", message);
    }
    std::string letters;
    for (int i = 0; i < 300; i++) letters += "\\x{" + std::to_string(1000 + i) + "}";
    CHECK(refusal(letters).find("more than 256 kinds of characters") != std::string::npos);
}

TEST_CASE("tokenizer_oniguruma: the translated pattern has no character but ASCII") {
    const TranslatedPattern pattern = translate_oniguruma("[^\\s\\p{L}]+|\xc3\xa9");
    for (const char c : pattern.regex) CHECK((c >= ' ' && c <= '~'));
    CHECK(pattern.kinds[0x41] == pattern.kinds[0x416]);
    CHECK(pattern.kinds[0x41] != pattern.kinds[0xe9]);
    CHECK(pattern.kinds[0x41] != pattern.kinds['1']);
}
