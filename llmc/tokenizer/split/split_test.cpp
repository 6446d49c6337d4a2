#include "llmc/tokenizer/split/split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/split_reference_testing.h"
#include "llmc/tokenizer/split/split_rules.h"
#include "llmc/tokenizer/split/split_testing.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

std::vector<std::string> pieces_of(SplitRule rule, const std::string& text) {
    return pieces_of(*make_splitter({rule, ""}), text);
}

using Pieces = std::vector<std::string>;

constexpr SplitRule known_rules[] = {SplitRule::gpt2, SplitRule::cl100k, SplitRule::llama3, SplitRule::qwen};

const std::vector<std::string> fragments = {"'s",
                                            "'t",
                                            "'re",
                                            "'ve",
                                            "'m",
                                            "'ll",
                                            "'d",
                                            "'S",
                                            "'LL",
                                            "'",
                                            "''",
                                            "'r",
                                            "'l",
                                            " 's",
                                            "s",
                                            "e",
                                            "l",
                                            "a",
                                            "Z",
                                            "word",
                                            " ",
                                            "  ",
                                            "   ",
                                            "\n",
                                            "\n\n",
                                            "\r\n",
                                            "\r",
                                            "\t",
                                            "\v",
                                            "\f",
                                            "\x1c",
                                            "0",
                                            "7",
                                            "42",
                                            "123",
                                            "1234567",
                                            ".",
                                            "!?",
                                            "_",
                                            "-----",
                                            "\xc2\xa0",
                                            "\xe2\x80\x83",
                                            "\xe3\x80\x80",
                                            "\xc2\x85",
                                            "\xe2\x80\xa8",
                                            "\xc5\xbf",
                                            "'\xc5\xbf",
                                            "\xc3\xa9",
                                            "e\xcc\x81",
                                            "\xe4\xb8\xad\xe6\x96\x87",
                                            "\xd9\xa3",
                                            "\xc2\xbd",
                                            "\xf0\x9d\x9f\x99",
                                            "\xf0\x9f\x98\x80",
                                            "\xf0\x90\x8e\x80",
                                            "\xf4\x8f\xbf\xbf",
                                            std::string(1, '\0'),
                                            "the quick brown fox jumps over the lazy dog and away"};

std::string random_text(std::mt19937& random, std::size_t parts) {
    std::string out;
    for (std::size_t i = 0; i < parts; i++) out += fragments[random() % fragments.size()];
    return out;
}

}   // namespace

TEST_CASE("tokenizer_split: GPT-2's rule on its corner cases") {
    CHECK(pieces_of(SplitRule::gpt2, "") == Pieces{});
    CHECK(pieces_of(SplitRule::gpt2, "Hello world") == Pieces{"Hello", " world"});
    CHECK(pieces_of(SplitRule::gpt2, "a  b") == Pieces{"a", " ", " b"});
    CHECK(pieces_of(SplitRule::gpt2, "a\n\nb") == Pieces{"a", "\n", "\n", "b"});
    CHECK(pieces_of(SplitRule::gpt2, "a \n") == Pieces{"a", " \n"});
    CHECK(pieces_of(SplitRule::gpt2, "it's we'll I'd''s 's") ==
          Pieces{"it", "'s", " we", "'ll", " I", "'d", "''", "s", " '", "s"});
    CHECK(pieces_of(SplitRule::gpt2, "'sabc 'rex") == Pieces{"'s", "abc", " '", "rex"});
    CHECK(pieces_of(SplitRule::gpt2, "x1y_2") == Pieces{"x", "1", "y", "_", "2"});
    CHECK(pieces_of(SplitRule::gpt2, "\xe3\x80\x80 \xe3\x80\x80x") == Pieces{"\xe3\x80\x80 ", "\xe3\x80\x80", "x"});
}

TEST_CASE("tokenizer_split: cl100k, Llama-3 and Qwen differ in white space at the end and in numbers") {
    CHECK(pieces_of(SplitRule::cl100k, "a1234'S\n\n b") == Pieces{"a", "123", "4", "'S", "\n\n", " b"});
    CHECK(pieces_of(SplitRule::cl100k, "x.\n\n  y") == Pieces{"x", ".\n\n", " ", " y"});
    CHECK(pieces_of(SplitRule::cl100k, "foo\n  ") == Pieces{"foo", "\n  "});
    CHECK(pieces_of(SplitRule::llama3, "foo\n  ") == Pieces{"foo", "\n", "  "});
    CHECK(pieces_of(SplitRule::llama3, "a1234 5") == Pieces{"a", "123", "4", " ", "5"});
    CHECK(pieces_of(SplitRule::qwen, "a12 3\n  ") == Pieces{"a", "1", "2", " ", "3", "\n", "  "});
    CHECK(pieces_of(SplitRule::llama3, "\tword '\xc5\xbf't") == Pieces{"\tword", " '", "\xc5\xbf", "'t"});
}

TEST_CASE(
    "tokenizer_split: a URL and the line end behind it: its last signs take line ends along, but under GPT-2's rule") {
    for (const std::string end : {"\n", "\r\n", "\n\n", "\r"}) {
        for (const SplitRule rule : {SplitRule::cl100k, SplitRule::llama3, SplitRule::qwen}) {
            CHECK(pieces_of(rule, "https://a" + end + "z") == Pieces{"https", "://", "a", end, "z"});
            CHECK(pieces_of(rule, "https://a/" + end + "z") == Pieces{"https", "://", "a", "/" + end, "z"});
            CHECK(pieces_of(rule, "https://" + end + "z") == Pieces{"https", "://" + end, "z"});
            CHECK(pieces_of(rule, "https://a/?" + end + "/z") == Pieces{"https", "://", "a", "/?" + end, "/z"});
        }
    }
    CHECK(pieces_of(SplitRule::gpt2, "https://a/\nz") == Pieces{"https", "://", "a", "/", "\n", "z"});
    CHECK(pieces_of(SplitRule::gpt2, "https://\n\nz") == Pieces{"https", "://", "\n", "\n", "z"});
    for (const SplitRule rule : known_rules) {   // nor is a cut between the two safe where they are one piece
        for (const std::string text :
             {"see https://a/\nsee https://b/\n", "x https://\r\n", "x https://a.b/c?d=e\n\ny"}) {
            const std::size_t cut = last_safe_cut({rule, ""}, text);
            Pieces parts = pieces_of(rule, text.substr(0, cut));
            const Pieces rest = pieces_of(rule, text.substr(cut));
            parts.insert(parts.end(), rest.begin(), rest.end());
            CHECK(parts == pieces_of(rule, text));
        }
    }
}

TEST_CASE("tokenizer_split: hand-written rules against PCRE2 on random text of every length") {
    if (!has_pcre2()) return;
    std::mt19937 random(1);
    for (SplitRule rule : known_rules) {
        auto ours = make_splitter({rule, ""});
        auto oracle = make_regex_splitter(regex_of({rule, ""}));
        for (int i = 0; i < 4000; i++) {
            std::string text = random_text(random, random() % 60);
            bool same = pieces_of(*ours, text) == pieces_of(*oracle, text);
            CHECK_MESSAGE(same, "rule ", static_cast<int>(rule), ", text: ", text);
            if (!same) break;
        }
    }
}

TEST_CASE("tokenizer_split: hand-written rules against PCRE2 on every code point") {
    if (!has_pcre2()) return;
    std::string text;
    for (std::uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xd800 && code < 0xe000) continue;
        if (code > 0x40000 && code % 61 != 0) continue;   // almost nothing is assigned there
        for (const char* context : {"a", " ", "1 ", ".\n", "'"}) {
            append_utf8(code, text);
            text += context;
        }
    }
    for (SplitRule rule : known_rules) {
        CHECK(pieces_of(rule, text) == pieces_of(*make_regex_splitter(regex_of({rule, ""})), text));
    }
}

TEST_CASE("tokenizer_split: masks of 64 bytes are the same on every path") {
    std::mt19937 random(4);
    for (MaskPath path : {MaskPath::avx2, MaskPath::avx512}) {
        const FindMasks find = masks_of(path);
        if (find == nullptr) {
            MESSAGE("skipped: this processor has no ", path == MaskPath::avx2 ? "AVX2" : "AVX-512");
            continue;
        }
        char bytes[128];
        const auto check = [&] {
            ByteMasks masks[2], expected[2];
            find(bytes, 2, masks);
            masks_of(MaskPath::plain)(bytes, 2, expected);
            CHECK(std::ranges::equal(masks, expected));
        };
        for (int byte = 0; byte < 256; byte++) {
            for (int at = 0; at < 128; at++) bytes[at] = static_cast<char>(byte + at * at);
            check();
        }
        for (int i = 0; i < 1000; i++) {
            for (char& byte : bytes) byte = static_cast<char>(random());
            check();
        }
    }
}

// The rules as masks against the rules one character at a time, on every path.
TEST_CASE("tokenizer_split: blocks of 64 bytes against one character at a time") {
    const std::vector<std::pair<SplitRule, SplitFamily>> families = {{SplitRule::gpt2, gpt2_family},
                                                                     {SplitRule::cl100k, cl100k_family},
                                                                     {SplitRule::llama3, llama3_family},
                                                                     {SplitRule::qwen, qwen_family}};
    for (const auto& rule_and_family : families) {
        ReferenceSplitter reference(rule_and_family.first);
        for (MaskPath path : {MaskPath::plain, MaskPath::avx2, MaskPath::avx512}) {
            const FindMasks find = masks_of(path);
            if (find == nullptr) continue;
            const auto splitter = make_block_splitter(rule_and_family.second, find);
            auto check = [&](const std::string& text) {
                const bool same = pieces_of(*splitter, text) == pieces_of(reference, text);
                CHECK_MESSAGE(same, "rule ", static_cast<int>(rule_and_family.first), ", text: ", text);
            };
            std::mt19937 random(5);
            for (int i = 0; i < 4000; i++) check(random_text(random, random() % 60));
            // pieces of every length at every place of a block's border, of each class and with what stands beside them
            for (const std::string unit :
                 {"a", "7", "!", " ", "\n", "\xc3\xa9", "\xc2\xa0", "\xd9\xa3", "\xe2\x80\x94"}) {
                std::string run;
                for (std::size_t length = 1; length <= 300; length++) {
                    run += unit;
                    const std::string before(random() % 65, 'x'), behind = fragments[random() % fragments.size()];
                    check(before + run + behind);
                    check(before + fragments[random() % fragments.size()] + run + " y");
                    check(before + " " + run + "\n" + behind);
                    check(before + run);
                }
            }
        }
    }
}

TEST_CASE("tokenizer_split: a long run of white space takes no quadratic time") {
    for (SplitRule rule : known_rules) {
        std::string text = "x\n" + std::string(1 << 22, ' ');   // read once for each block, it would take hours
        CHECK(pieces_of(rule, text).size() >= 2);
        CHECK(pieces_of(rule, text + "y").size() >= 3);
    }
}

TEST_CASE("tokenizer_split: a safe cut changes nothing") {
    std::mt19937 random(2);
    for (SplitRule rule : known_rules) {
        std::size_t cuts = 0;
        for (int i = 0; i < 3000; i++) {
            std::string text = random_text(random, 1 + random() % 40);
            // the text that the reader has seen so far, which may end within a character
            std::size_t cut = last_safe_cut({rule, ""}, std::string_view(text).substr(0, random() % (text.size() + 1)));
            REQUIRE(cut <= text.size());
            if (cut == 0) continue;
            cuts++;
            Pieces parts = pieces_of(rule, text.substr(0, cut));
            Pieces rest = pieces_of(rule, text.substr(cut));
            parts.insert(parts.end(), rest.begin(), rest.end());
            CHECK(parts == pieces_of(rule, text));
        }
        CHECK(cuts > 1000);
    }
}

TEST_CASE("tokenizer_split: any other pattern runs on PCRE2 and keeps what it does not match") {
    if (!has_pcre2()) return;
    CHECK(pattern_of("[a-z]+").rule == SplitRule::regex);
    CHECK(pieces_of(*make_splitter(pattern_of("[a-z]+")), "ab12cd3") == Pieces{"ab", "12", "cd", "3"});
    CHECK(pieces_of(*make_splitter(pattern_of("x*")), "axxb") == Pieces{"a", "xx", "b"});
    CHECK(pieces_of(*make_splitter(pattern_of("(?=[A-Z])")), "aBcDe") == Pieces{"a", "Bc", "De"});   // empty ones cut
    CHECK_THROWS_AS(make_splitter({SplitRule::regex, "(unclosed"}), Error);
}

TEST_CASE("tokenizer_split: a pattern has so many steps for a text, not for each match") {
    if (!has_pcre2()) return;
    std::string text;
    for (int i = 0; i < 300; i++) text += "aaaaaaaaaaaaaaaaaac";   // 2^18 ways to cut each run
    for (const char* pattern : {"(a+)+b|.", ".*.*.*b|."}) {
        CHECK_THROWS_WITH_AS(pieces_of(*make_regex_splitter(pattern), text),
                             doctest::Contains("takes more than 10000000 steps and 200 for each of a text's 5700"),
                             Error);
    }
    // without an alternation: every character begins a search that passes over all that follow
    text.assign(40000, 'a');
    CHECK(pieces_of(*make_regex_splitter("a*b"), text) == Pieces{text});   // but it needs a b
    text += "dbdc";
    for (const char* pattern : {"a*b", "(?:a|b)*c", "[ab]*+c"}) {
        CHECK_THROWS_WITH_AS(pieces_of(*make_regex_splitter(pattern), text), doctest::Contains("takes more than"),
                             Error);
    }
    const std::string longer(100000, 'a');   // one match of more steps than the compiled code is given
    CHECK(pieces_of(*make_regex_splitter("(?:a|b)+"), longer).size() == 1);
}

TEST_CASE("tokenizer_split: a pattern matches across the characters that compiled code sees at once") {
    if (!has_pcre2()) return;
    auto pieces = [](const char* pattern, const std::string& text) {
        return pieces_of(*make_regex_splitter(pattern), text);
    };
    for (const std::size_t length : {255, 256, 257, 1000, 16383, 16384, 16400}) {
        CAPTURE(length);
        const std::string run(length, 'a'), spaces(length, ' ');
        CHECK(pieces("b", run + "b" + run) == Pieces{run, "b", run});
        CHECK(pieces("a+", run) == Pieces{run});
        CHECK(pieces("a+b", run + "b" + run.substr(0, 5000)) == Pieces{run + "b", run.substr(0, 5000)});
        CHECK(pieces("(?<=a)b", run + "b") == Pieces{run, "b"});
        CHECK(pieces("\\Z", run) == Pieces{run});
        CHECK(pieces("a+$", run + "a") == Pieces{run + "a"});
        CHECK(pieces("\\s+(?!\\S)|\\s+", spaces + "b") == Pieces{spaces.substr(1), " ", "b"});
        CHECK(pieces("\\s+(?!\\S)", spaces) == Pieces{spaces});
        CHECK(pieces("\\b", run + " " + run) == Pieces{run, " ", run});
        const Pieces each = pieces("x*", run + "xx");   // an empty match in front of every other character
        CHECK(each.size() == length + 1);
        CHECK(each.back() == "xx");
    }
}

TEST_CASE("tokenizer_split: a rule is recognised from its own expression") {
    for (SplitRule rule : known_rules) {
        CHECK(pattern_of(regex_of({rule, ""})).rule == rule);
    }
    CHECK(pattern_of("").rule == SplitRule::none);
}

TEST_CASE("tokenizer_split: normal form C") {
    std::string storage;
    const auto nfc = [&](std::string_view text) { return std::string(to_nfc(text, storage)); };
    CHECK(nfc("caf\xc3\xa9 \xff") == "caf\xc3\xa9 \xff");   // nothing that could change
    try {                                                   // outside of CHECK, which keeps what is thrown
        nfc("cafe\xcc\x81");
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::usage);
        MESSAGE("skipped: ", problem.message());
        return;
    }
    CHECK(nfc("cafe\xcc\x81") == "caf\xc3\xa9");
    CHECK(nfc("\xff"
              "e\xcc\x81\xe2\x84") == "\xff\xc3\xa9\xe2\x84");   // between bytes that are not UTF-8
    CHECK(nfc("\xe1\x84\x80\xe1\x85\xa1") == "\xea\xb0\x80");    // Hangul
    CHECK(nfc("\xe2\x84\xab") == "\xc3\x85");                    // the angstrom sign
    CHECK(nfc("x\xcc\x81\xcc\xa3") == "x\xcc\xa3\xcc\x81");      // marks in their order
}
