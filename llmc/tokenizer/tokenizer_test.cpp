#include "llmc/tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

using Ids = std::vector<std::uint32_t>;

Ids encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
    Ids ids;
    Encoder(tokenizer, options).encode(text, ids);
    return ids;
}

// Bytes, then " t", "he", " the", "\xc3\xa9", "    ", and a special token.
Tokenizer small_tokenizer(SplitRule rule = SplitRule::gpt2) {
    TokenizerData data = Tokenizer::bytes().data();
    data.name = "small";
    data.tokens.pop_back();
    data.pattern.rule = rule;
    auto add = [&](std::uint32_t left, std::uint32_t right) {
        std::uint32_t id = static_cast<std::uint32_t>(data.tokens.size());
        data.merges.push_back({left, right, id, static_cast<std::uint32_t>(data.merges.size())});
        data.tokens.push_back(data.tokens[left] + data.tokens[right]);
        return id;
    };
    std::uint32_t space_t = add(' ', 't'), he = add('h', 'e');
    add(space_t, he);
    add(0xc3, 0xa9);
    std::uint32_t two = add(' ', ' ');
    add(two, two);
    data.end_of_text = static_cast<std::uint32_t>(data.tokens.size());
    data.tokens.push_back("<|endoftext|>");
    data.is_special.assign(data.tokens.size(), 0);
    data.is_special.back() = 1;
    return Tokenizer(data);
}

// GPT-2's published merges, which are not part of this repository.
std::string gpt2_path() {
    const char* given = std::getenv("GPT2_VOCAB");
    std::string path = given != nullptr ? given : "../shared/data/gpt2_vocab.bpe";
    if (std::filesystem::exists(path)) return path;
    MESSAGE("skipped: no ", path, " (set GPT2_VOCAB to GPT-2's vocab.bpe)");
    return "";
}

std::string random_bytes(std::mt19937& random, std::size_t count) {
    std::string bytes;
    const std::string likely = " the caf\xc3\xa9 \n\n'll 123    ";
    while (bytes.size() < count) {
        bytes += random() % 8 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    }
    return bytes;
}

}   // namespace

TEST_CASE("tokenizer: bytes") {
    Tokenizer tokenizer = Tokenizer::bytes();
    CHECK(tokenizer.vocab_size() == 257);
    CHECK(tokenizer.end_of_text() == 256);
    CHECK(encode(tokenizer, std::string_view("a\xff\0b", 4)) == Ids{'a', 0xff, 0, 'b'});
    std::int32_t ids[] = {'h', 'i', 256};
    CHECK(tokenizer.decode(ids, 3) == "hi<|endoftext|>");
    std::int32_t padded[] = {257};
    CHECK_THROWS_AS(tokenizer.decode(padded, 1), Error);
}

TEST_CASE("tokenizer: merges stay within pieces") {
    Tokenizer tokenizer = small_tokenizer();
    CHECK(encode(tokenizer, " the") == Ids{258});
    CHECK(encode(tokenizer, "the the") == Ids{'t', 257, 258});
    CHECK(encode(tokenizer, "\n  the") == Ids{'\n', ' ', 258});   // the last space belongs to the word
    CHECK(encode(tokenizer, "     ") == Ids{261, ' '});
}

TEST_CASE("tokenizer: decode(encode(x)) == x for any bytes, whatever is done with those that are not UTF-8") {
    std::mt19937 random(7);
    for (SplitRule rule : {SplitRule::none, SplitRule::gpt2, SplitRule::cl100k, SplitRule::llama3, SplitRule::qwen}) {
        Tokenizer tokenizer = small_tokenizer(rule);
        for (InvalidUtf8 invalid : {InvalidUtf8::tiktoken, InvalidUtf8::split}) {
            Encoder encoder(tokenizer, {SpecialText::ordinary, invalid});
            for (int i = 0; i < 300; i++) {
                std::string bytes = random_bytes(random, random() % 400);
                Ids ids;
                encoder.encode(bytes, ids);
                CHECK(tokenizer.decode(ids.data(), ids.size()) == bytes);
            }
        }
    }
}

TEST_CASE("tokenizer: bytes that are not UTF-8") {
    Tokenizer tokenizer = small_tokenizer();
    auto with = [&](InvalidUtf8 invalid, std::string_view text) {
        return encode(tokenizer, text, {SpecialText::ordinary, invalid});
    };
    // tiktoken takes back the last piece before them, and all that follows joins it
    CHECK(with(InvalidUtf8::tiktoken, "x the\xff the") == Ids{'x', 258, 0xff, 258});
    CHECK(with(InvalidUtf8::tiktoken, "x  \xff") == Ids{'x', 260, 0xff});
    CHECK(with(InvalidUtf8::split, "x \xff the") == Ids{'x', ' ', 0xff, 258});
    CHECK(with(InvalidUtf8::replace,
               "a\xe2\x82"
               "b\xff") == Ids{'a', 0xef, 0xbf, 0xbd, 'b', 0xef, 0xbf, 0xbd});
    CHECK_THROWS_AS(with(InvalidUtf8::refuse, "a\xff"), Error);
    CHECK(with(InvalidUtf8::refuse, "caf\xc3\xa9") == Ids{'c', 'a', 'f', 259});
}

TEST_CASE("tokenizer: text that spells a special token") {
    Tokenizer tokenizer = small_tokenizer();
    std::string text = " the<|endoftext|> the<|endoftext";
    auto with = [&](SpecialText special) { return encode(tokenizer, text, {special, InvalidUtf8::tiktoken}); };
    CHECK(with(SpecialText::encode).size() == 3 + 11);
    CHECK(with(SpecialText::encode)[1] == tokenizer.end_of_text());
    CHECK(with(SpecialText::ordinary).size() == 2 + 13 + 11);
    CHECK_THROWS_WITH_AS(with(SpecialText::refuse),
                         doctest::Contains("byte 4 of the text is the special token <|endoftext|>"), Error);
    CHECK(encode(tokenizer, "no <|token|>", {SpecialText::refuse, InvalidUtf8::tiktoken}).size() == 12);
}

TEST_CASE("tokenizer: of several special tokens the first in the text counts, of those that begin there the longest") {
    TokenizerData data = Tokenizer::bytes().data();
    const std::uint32_t short_id = static_cast<std::uint32_t>(data.tokens.size());
    for (const char* bytes : {"<|a|>", "<|a|>b", "<|z|>"}) data.tokens.push_back(bytes);
    data.is_special.resize(data.tokens.size(), 1);
    const Tokenizer tokenizer(data);
    const EncodeOptions options = {SpecialText::encode, InvalidUtf8::tiktoken};
    CHECK(encode(tokenizer, "<|z|>x<|a|>b<|a|>", options) == Ids{short_id + 2, 'x', short_id + 1, short_id});
}

TEST_CASE("tokenizer: special tokens of any bytes, many at once, are found as a search for each finds them") {
    for (std::uint64_t seed = 0; seed < 60; seed++) {
        std::mt19937_64 random(seed);
        auto below = [&](std::uint64_t n) { return random() % n; };
        auto letters = [&](std::uint64_t most) {
            std::string made;
            for (std::uint64_t n = 1 + below(most); n > 0; n--) made += "ab \xff"[below(seed % 2 == 0 ? 2 : 4)];
            return made;
        };
        TokenizerData data = Tokenizer::bytes().data();
        const auto first = static_cast<std::uint32_t>(data.tokens.size());
        for (std::uint64_t n = 1 + below(30); n > 0; n--) data.tokens.push_back(letters(n % 3 == 0 ? 12 : 4));
        data.is_special.resize(data.tokens.size(), 1);
        const std::string text = letters(300);
        Ids expected;
        for (std::size_t at = 0; at < text.size();) {
            std::uint32_t longest = first;
            std::size_t length = 0;
            for (std::uint32_t id = first; id < data.tokens.size(); id++) {
                const std::string& token = data.tokens[id];
                if (token.size() > length && text.compare(at, token.size(), token) == 0)
                    longest = id, length = token.size();
            }
            expected.push_back(length > 0 ? longest : static_cast<unsigned char>(text[at]));
            at += std::max<std::size_t>(length, 1);
        }
        CAPTURE(seed);
        CHECK(encode(Tokenizer(data), text, {SpecialText::encode, InvalidUtf8::tiktoken}) == expected);
    }
}

TEST_CASE("tokenizer: ids beyond 16 bits are merged, remembered and written whole") {
    TokenizerData data = Tokenizer::bytes().data();
    data.name = "large";
    data.tokens.pop_back();
    data.pattern.rule = SplitRule::gpt2;
    auto add = [&](std::uint32_t left, std::uint32_t right) {
        std::uint32_t id = static_cast<std::uint32_t>(data.tokens.size());
        data.merges.push_back({left, right, id, static_cast<std::uint32_t>(data.merges.size())});
        data.tokens.push_back(data.tokens[left] + data.tokens[right]);
        return id;
    };
    // every two bytes, (ff, ff) first
    auto pair = [](std::uint32_t left, std::uint32_t right) { return 256 + (0xffff - (left << 8 | right)); };
    for (std::uint32_t i = 0; i < 0x10000; i++) add((0xffff - i) >> 8, (0xffff - i) & 0xff);
    const std::uint32_t high = add(pair(0xf0, 0xa0), pair(0xb9, 0xbf)), higher = add(high, high);
    CHECK(high > 0xffff);
    data.end_of_text = static_cast<std::uint32_t>(data.tokens.size());
    data.tokens.push_back("<|endoftext|>");
    data.is_special.assign(data.tokens.size(), 0);
    data.is_special.back() = 1;
    const Tokenizer tokenizer(data);
    const std::string once = "\xf0\xa0\xb9\xbf ", twice = "\xf0\xa0\xb9\xbf\xf0\xa0\xb9\xbf";
    Encoder encoder(tokenizer);
    for (int time = 0; time < 2; time++) {   // merged, then remembered
        Ids ids;
        encoder.encode(once + twice, ids);
        CHECK(ids == Ids{high, ' ', higher});
    }
    // (257, 256) has the low bits of (high, high), if each id had 16
    Ids ids;
    BpeModel::Scratch scratch;
    tokenizer.model().encode("\xff\xfe\xff\xff", scratch, ids);
    CHECK(ids == Ids{257, 256});
}

TEST_CASE("tokenizer: an encoder's memory of pieces does not change its answers") {
    Tokenizer tokenizer = small_tokenizer();
    Encoder used(tokenizer);
    std::mt19937 random(8);
    for (int i = 0; i < 200; i++) {
        std::string bytes = random_bytes(random, 500);
        Ids ids;
        used.encode(bytes, ids);
        CHECK(ids == encode(tokenizer, bytes));
    }
}

TEST_CASE("tokenizer: saved and loaded again, by every format, it is the same") {
    TemporaryFolder folder;
    for (const Tokenizer& tokenizer : {Tokenizer::bytes(), small_tokenizer(), small_tokenizer(SplitRule::llama3),
                                       small_tokenizer(SplitRule::qwen)}) {
        tokenizer.save(folder.path());
        Tokenizer json = Tokenizer::load(folder / "tokenizer.json");
        Tokenizer bin = Tokenizer::load(folder / "tokenizer.bin");
        CHECK(json.hash() == tokenizer.hash());
        CHECK(bin.hash() == tokenizer.hash());
        CHECK(Tokenizer::load(folder.path()).data().can_encode);
        CHECK(json.data().pattern.rule == tokenizer.data().pattern.rule);
        std::string text = " the caf\xc3\xa9's    \n the 1234";
        CHECK(encode(json, text) == encode(tokenizer, text));
        CHECK_THROWS_AS(Encoder{bin}, Error);
    }
}

TEST_CASE("tokenizer: normal form C, what others put around a text and who leaves out a token are written back") {
    TokenizerData data = small_tokenizer(SplitRule::qwen).data();
    data.pattern.nfc = true;
    data.post_processor = R"({"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}})";
    data.tokens.push_back("<tool_call>");
    data.is_special.push_back(2);
    TemporaryFolder folder;
    const Tokenizer tokenizer(data);
    tokenizer.save(folder.path());
    const Tokenizer again = Tokenizer::load(folder / "tokenizer.json");
    CHECK(again.data().pattern.nfc);
    CHECK(again.data().post_processor == data.post_processor);
    CHECK(again.data().is_special == data.is_special);
    CHECK(again.end_of_text() == tokenizer.end_of_text());
    try {   // outside of CHECK, which keeps what is thrown
        encode(again, "e\xcc\x81 the");
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::usage);
        MESSAGE("skipped: ", problem.message());
        return;
    }
    CHECK(encode(again, "e\xcc\x81 the") == Ids{259, 258});
    CHECK(encode(again, "e\xcc\x81\xff") == Ids{259, 0xff});
}

TEST_CASE("tokenizer: GPT-2's ids, as tiktoken gives them") {
    std::string path = gpt2_path();
    if (path.empty()) return;
    Tokenizer tokenizer = Tokenizer::load(path);
    CHECK(tokenizer.name() == "gpt2");
    CHECK(tokenizer.vocab_size() == 50257);
    CHECK(tokenizer.end_of_text() == 50256);
    CHECK(encode(tokenizer, "Hello world") == Ids{15496, 995});
    CHECK(encode(tokenizer, "First Citizen:\nBefore we proceed any further, hear me speak.") ==
          Ids{5962, 22307, 25, 198, 8421, 356, 5120, 597, 2252, 11, 3285, 502, 2740, 13});
    // any token, encoded, is itself: so joining by merges is the same as joining by rank
    BpeModel::Scratch scratch;
    for (std::uint32_t id = 0; id < 50256; id++) {
        Ids ids;
        tokenizer.model().encode(tokenizer.data().tokens[id], scratch, ids);
        REQUIRE(ids == Ids{id});
    }
}
