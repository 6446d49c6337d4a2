// Added tokens in text: ids that Hugging Face's tokenizers gave (dev/reference/added_tokens.py), and where a text may
// be cut.

#include "llmc/tokenizer/added_tokens.h"

#include <doctest/doctest.h>

#include <random>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/split/split.h"

namespace {

using Ids = std::vector<std::uint32_t>;

Ids encode(const Tokenizer& tokenizer, std::string_view text, SpecialText special) {
    Ids ids;
    Encoder(tokenizer, {special, InvalidUtf8::split}).encode(text, ids);
    return ids;
}

Ids ids_in(const Json& json) {
    Ids ids;
    for (const Json& id : json.elements()) ids.push_back(static_cast<std::uint32_t>(id.as_whole(UINT32_MAX)));
    return ids;
}

// Bytes, and added tokens from id 256 on: the first is special, the others are not.
Tokenizer with_tokens(const std::vector<std::pair<std::string, AddedTokenRules>>& added) {
    TokenizerData data = Tokenizer::bytes().data();
    data.special = {};
    data.pattern.rule = SplitRule::gpt2;
    for (const auto& [token, rules] : added) {
        data.rules[static_cast<std::uint32_t>(data.tokens.size())] = rules;
        data.tokens.push_back(token);
        data.is_special.push_back(2);
    }
    return Tokenizer(data);
}

}   // namespace

TEST_CASE("added_tokens: ids are those of the tokenizers package, and so is what is written back") {
    const Json cases = parse_json(read_whole(real_files(), "dev/reference/golden_added_tokens.json"));
    int texts = 0;
    for (const Json& recorded : cases.elements()) {
        const std::string name = recorded.at("name").as_text();
        const Tokenizer tokenizer(parse_huggingface(to_text(recorded.at("tokenizer")), name));
        const Tokenizer again(parse_huggingface(to_huggingface(tokenizer.data()), name));
        CHECK(again.data().rules == tokenizer.data().rules);
        CHECK(again.data().is_special == tokenizer.data().is_special);
        for (const Json& entry : recorded.at("texts").elements()) {
            const std::string& text = entry.elements()[0].as_text();
            CAPTURE(name);
            CAPTURE(text);
            try {
                encode(tokenizer, text, SpecialText::encode);
            } catch (const Error& error) {   // a build without ICU
                CHECK(error.kind() == ErrorKind::usage);
                continue;
            }
            CHECK(encode(tokenizer, text, SpecialText::encode) == ids_in(entry.elements()[1]));
            CHECK(encode(tokenizer, text, SpecialText::ordinary) == ids_in(entry.elements()[2]));
            CHECK(encode(again, text, SpecialText::encode) == ids_in(entry.elements()[1]));
            texts++;
        }
    }
    CHECK(texts > 100);
}

TEST_CASE("added_tokens: tokens that are not special are found whatever is asked of special ones") {
    const Tokenizer tokenizer = with_tokens({{"<call>", {}}});
    for (SpecialText special : {SpecialText::ordinary, SpecialText::encode, SpecialText::refuse}) {
        CHECK(encode(tokenizer, "a<call>b", special) == Ids{'a', 257, 'b'});
    }
    CHECK(encode(tokenizer, "<|endoftext|><call>", SpecialText::encode) == Ids{256, 257});
    CHECK(encode(tokenizer, "<|endoftext|><call>", SpecialText::ordinary).size() == 13 + 1);
    CHECK_THROWS_WITH_AS(encode(tokenizer, "a<call><|endoftext|>", SpecialText::refuse),
                         doctest::Contains("byte 7 of the text is the special token <|endoftext|>"), Error);
}

TEST_CASE("added_tokens: white space that tokens take along, beside bytes that are not UTF-8, too") {
    const Tokenizer tokenizer = with_tokens({{"<l>", {.lstrip = true}}, {"<r>", {.rstrip = true}}});
    auto ids = [&](std::string_view text) { return encode(tokenizer, text, SpecialText::ordinary); };
    CHECK(ids("a \n\t<l> b") == Ids{'a', 257, ' ', 'b'});
    CHECK(ids("a <r> \u2003\u00a0b") == Ids{'a', ' ', 258, 'b'});
    CHECK(ids("<r>  <l>") == Ids{258, 257});
    CHECK(ids("<l>  <r>") == Ids{257, ' ', ' ', 258});
    CHECK(ids("\x80 <l>") == Ids{0x80, 257});
    CHECK(ids("\x80<l>") == Ids{0x80, 257});
    CHECK(ids("<r> \xe2\x80") == Ids{258, 0xe2, 0x80});
}

TEST_CASE("added_tokens: a token of white space that the one before has taken along is not found again") {
    const Tokenizer tokenizer = with_tokens({{"\n\n", {.lstrip = true, .rstrip = true}},
                                             {"<r>", {.rstrip = true}},
                                             {"  ", {.lstrip = true}},
                                             {"\t\t", {}}});
    const std::pair<const char*, Ids> recorded[] = {
        // from tokenizers 0.23
        {"\n\n\n\n", {257}},
        {"a\n\n\n\nb", {'a', 257, 'b'}},
        {"a\n\n\n\n\nb\n\n", {'a', 257, 'b', 257}},
        {"<r>\n\nb", {258, 'b'}},
        {"<r>  b", {258, 'b'}},
        {"<r>\n\n  b", {258, 'b'}},
        {"<r> <r>  <r>", {258, 258, 258}},
        {"<r> \t\tb", {258, 260, 'b'}},   // this one takes nothing along, and is found
        {"<r>a  ", {258, 'a', 259}},
        {"   ", {259, ' '}},
        {"a     b", {'a', 259, 259, ' ', 'b'}},
    };
    for (const auto& example : recorded) {
        INFO(example.first);
        CHECK(encode(tokenizer, example.first, SpecialText::ordinary) == example.second);
    }
}

TEST_CASE("added_tokens: single words are told by the characters of words, not by bytes") {
    const Tokenizer tokenizer = with_tokens({{"one", {.single_word = true}}});
    auto found = [&](const std::string& text) {
        const Ids ids = encode(tokenizer, text, SpecialText::ordinary);
        return std::ranges::find(ids, 257u) != ids.end();
    };
    for (const char* beside : {"", " ", ".", "-", "\n", "\u2003", "\u20ac", "\xff"}) {
        CHECK(found(std::string(beside) + "one"));
        CHECK(found(std::string("one") + beside));
    }
    for (const char* beside : {"a", "_", "1", "\u00e9", "\u4e2d", "\u0301", "\u200d"}) {
        CHECK_FALSE(found(std::string(beside) + "one"));
        CHECK_FALSE(found(std::string("one") + beside));
    }
}

TEST_CASE("added_tokens: a text that is cut before white space has the same tokens, where they say so") {
    std::vector<std::pair<std::string, AddedTokenRules>> runs;
    for (std::size_t n = 2; n <= 24; n++) runs.push_back({std::string(n, ' '), {.normalized = true}});
    CHECK(AddedTokens(with_tokens(runs).data()).stay_whole_before_space());
    for (const auto& token : std::vector<std::pair<std::string, AddedTokenRules>>{
             {"a b", {}}, {"a\n", {}}, {"<r>", {.rstrip = true}}, {" a", {.single_word = true}}}) {
        CHECK_FALSE(AddedTokens(with_tokens({token}).data()).stay_whole_before_space());
    }
    runs.insert(runs.end(), {{"<l>", {.lstrip = true}}, {"word", {.single_word = true}}, {"\n ", {}}, {"<x>", {}}});
    const Tokenizer tokenizer = with_tokens(runs);
    REQUIRE(AddedTokens(tokenizer.data()).stay_whole_before_space());
    std::mt19937 random(3);
    const std::string parts[] = {" ", "  ", "\n", "\n ", "<l>", "word", "a", "<x>", ".", "\t", "\u00a0"};
    for (int i = 0; i < 500; i++) {
        std::string text;
        for (int n = 0; n < 30; n++) text += parts[random() % std::size(parts)];
        const std::size_t cut = last_safe_cut(tokenizer.data().pattern, text);
        Ids both = encode(tokenizer, text.substr(0, cut), SpecialText::encode);
        const Ids rest = encode(tokenizer, text.substr(cut), SpecialText::encode);
        both.insert(both.end(), rest.begin(), rest.end());
        CAPTURE(text);
        CHECK(both == encode(tokenizer, text, SpecialText::encode));
    }
}
