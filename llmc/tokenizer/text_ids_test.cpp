#include "llmc/tokenizer/text_ids.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files/files.h"

namespace {

using Ids = std::vector<std::uint32_t>;

// Returns the tokenizer of bytes with <s> (257) and " b" (258), which a blank and b merge into.
TokenizerData small_tokenizer() {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.insert(data.tokens.end(), {"<s>", " b"});
    data.is_special.insert(data.is_special.end(), {1, 0});
    data.merges = {{' ', 'b', 258, 0}};
    return data;
}

Ids bytes_in(std::string_view text) {
    Ids ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
}

}   // namespace

TEST_CASE("text_ids: the tokens in front come first, once, and names of special tokens become those tokens") {
    TokenizerData data = small_tokenizer();
    CHECK(TextEncoder(Tokenizer(data)).encode("ab") == Ids{'a', 'b'});
    CHECK(TextEncoder(Tokenizer(data)).encode("") == Ids{});
    CHECK(front_of_texts(Tokenizer(data)).empty());
    data.front = {257};
    TextEncoder encoder((Tokenizer(data)));
    CHECK(encoder.encode("ab") == Ids{257, 'a', 'b'});
    CHECK(encoder.encode("") == Ids{257});
    CHECK(encoder.encode("<s>ab") == Ids{257, 'a', 'b'});   // they are there
    CHECK(encoder.encode("a<s><|endoftext|>") == Ids{257, 'a', 257, 256});
    data.front = {257, 256};
    CHECK(TextEncoder(Tokenizer(data)).encode("a") == Ids{257, 256, 'a'});
    CHECK(TextEncoder(Tokenizer(data)).encode("<s><|endoftext|>a") == Ids{257, 256, 'a'});
    CHECK(TextEncoder(Tokenizer(data)).encode("<s>a") == Ids{257, 'a'});   // it begins in its own way
    CHECK(TextEncoder(Tokenizer(data)).encode("<|endoftext|>a") == Ids{257, 256, 256, 'a'});
    CHECK(front_of_texts(Tokenizer(data)) == "<s><|endoftext|>");
}

TEST_CASE(
    "text_ids: a completion is what lies behind the ids of its context, and takes the context's last white space") {
    TokenizerData data = small_tokenizer();
    data.front = {257};
    TextEncoder encoder((Tokenizer(data)));
    auto is = [&](const std::string& context, const std::string& completion, const Ids& first, const Ids& rest) {
        const ContinuedText found = encoder.encode_continued(context, completion);
        CAPTURE(context);
        CHECK(found.context == first);
        CHECK(found.completion == rest);
    };
    is("a", " b", {257, 'a'}, {258});
    is("a ", "b", {257, 'a'}, {258});   // the blank and the b are one token
    is("a \n", " b", {257, 'a'}, {' ', '\n', 258});
    is("a", "<s>", {257, 'a'}, {257});
    is("<s>a", " b", {257, 'a'}, {258});
    is("", " b", {257}, {258});
    is("\t", "b", {257}, {'\t', 'b'});
    // white space is what Python's str.rstrip takes: no-break and ideographic blanks, U+001C, but not U+180E and U+200B
    for (const std::string space : {"\u00a0", "\u3000", "\x1c", "\u2028", "\u200a", "\u0085", "\v"}) {
        is("a" + space, "c", {257, 'a'}, bytes_in(space + "c"));
    }
    for (const std::string other : {"\u180e", "\u200b", "\ufeff", "\u00e4", "\x85", "\xe3\x80", "\xa0"}) {
        Ids context = bytes_in("a" + other);
        context.insert(context.begin(), 257);
        is("a" + other, "c", context, {'c'});
    }
}

TEST_CASE("text_ids: a tokenizer that can only decode is refused, and tokens behind a text are told") {
    TokenizerData data = small_tokenizer();
    data.name = "small";
    CHECK(warning_of_tokens_behind(Tokenizer(data)).empty());
    data.back = {256};
    CHECK(warning_of_tokens_behind(Tokenizer(data)).find("tokenizer small: its post-processor puts <|endoftext|> ") ==
          0);
    CHECK(TextEncoder(Tokenizer(data)).encode("a") == Ids{'a'});
    data.can_encode = false;
    CHECK_THROWS_WITH_AS(TextEncoder{Tokenizer(data)}, doctest::Contains("can only turn tokens into text"), Error);
}
