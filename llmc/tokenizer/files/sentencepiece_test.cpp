// Tokenizers of characters with tokens for bytes, as tokenizer.json files of SentencePiece's vocabularies have them.

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/input.h"
#include "llmc/tokenizer/split/split_testing.h"

namespace {

using Ids = std::vector<std::uint32_t>;

const Json& recorded() {
    static const Json cases = parse_json(read_whole(real_files(), "dev/reference/golden_sentencepiece.json"));
    return cases;
}

// Returns the recorded tokenizer.json of a family.
std::string json_of_family(const std::string& name) {
    for (const Json& known : recorded().elements()) {
        if (known.at("name") == name) return to_text(known.at("tokenizer"));
    }
    FAIL("no family ", name);
    return "";
}

Ids encode(Encoder& encoder, std::string_view text) {
    Ids ids;
    encoder.encode(text, ids);
    return ids;
}
Ids encode(const Tokenizer& tokenizer, std::string_view text) {
    Encoder encoder(tokenizer, {SpecialText::encode, InvalidUtf8::tiktoken});
    return encode(encoder, text);
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids) {
    std::string text;
    DocumentDecoder(tokenizer).decode(ids.data(), ids.size(), text);
    return text;
}

std::string edited(std::string json, const std::string& from, const std::string& to) {
    const std::size_t at = json.find(from);
    REQUIRE(at != std::string::npos);
    return json.replace(at, from.size(), to);
}

// Returns a tokenizer.json with another value of one part.
std::string with_part(const std::string& json, const std::string& part, const Json& value) {
    const Json all = parse_json(json);
    Json other = Json::object();
    for (const auto& [key, old] : all.members()) other.add(key, key == part ? value : old);
    return to_text(other);
}

// Returns a tokenizer.json with more tokens that are not special, found in the normal form of a text or as they are.
std::string with_added(const std::string& json, std::uint64_t id, const std::vector<std::string>& contents,
                       bool normalized) {
    const Json old = parse_json(json);
    Json added = Json::array();
    for (const Json& token : old.at("added_tokens").elements()) added.append(token);
    for (const std::string& content : contents) {
        added.append(Json::object({{"id", id++},
                                   {"content", content},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", normalized},
                                   {"special", false}}));
    }
    return with_part(json, "added_tokens", added);
}

}   // namespace

TEST_CASE("sentencepiece: ids and decoded texts are those of the tokenizers package, and so is what is written back") {
    if (!has_pcre2()) return;   // Gemma's pre-tokenizer needs it
    int texts = 0;
    for (const Json& known : recorded().elements()) {
        const std::string& name = known.at("name").as_text();
        const Tokenizer tokenizer(parse_huggingface(to_text(known.at("tokenizer")), name));
        Encoder encoder(tokenizer, {SpecialText::encode, InvalidUtf8::tiktoken});
        const std::string written = to_huggingface(tokenizer.data());
        const Tokenizer again(parse_huggingface(written, name));
        CHECK(again.hash() == tokenizer.hash());
        CHECK(again.data().spelled == tokenizer.data().spelled);
        CHECK(again.hash_of_rules() == tokenizer.hash_of_rules());
        for (const char* part : {"normalizer", "pre_tokenizer", "decoder"}) {
            CHECK(parse_json(written).at(part) == known.at("tokenizer").at(part));
        }
        CHECK(parse_json(written).at("model").at("vocab") == known.at("tokenizer").at("model").at("vocab"));
        for (const Json& entry : known.at("texts").elements()) {
            Ids ids;
            for (const Json& id : entry.elements()[1].elements()) {
                ids.push_back(static_cast<std::uint32_t>(id.as_whole(UINT32_MAX)));
            }
            CAPTURE(name);
            CAPTURE(entry.elements()[0].as_text());
            CHECK(encode(encoder, entry.elements()[0].as_text()) == ids);
            CHECK(decode(tokenizer, ids) == entry.elements()[2].as_text());
            texts++;
        }
    }
    CHECK(texts > 200);
}

TEST_CASE("sentencepiece: a document is decoded alike in whatever parts") {
    const Tokenizer tokenizer(parse_huggingface(json_of_family("Llama 2"), "tokenizer.json"));
    Ids ids = encode(tokenizer, "ab  a b");
    ids.push_back(tokenizer.end_of_text());
    for (const std::uint32_t id : encode(tokenizer, " b")) ids.push_back(id);
    DocumentDecoder decoder(tokenizer);
    std::string text;
    for (const std::uint32_t id : ids) decoder.decode(&id, 1, text);
    CHECK(text == "ab  a b</s> b");
}

TEST_CASE("sentencepiece: bytes that are not UTF-8 become the tokens of bytes") {
    const Tokenizer tokenizer(parse_huggingface(json_of_family("Llama 2"), "tokenizer.json"));
    const std::string text = "a \xff\xe2\x96 b";
    CHECK(decode(tokenizer, encode(tokenizer, text)) == text);
}

TEST_CASE("sentencepiece: special tokens that are found in the normal form of a text keep their names") {
    const std::string llama = json_of_family("Llama 2");   // as the first Llama's, whose decoder makes " </s>" of one
    const Json old = parse_json(llama);
    Json added = Json::array();
    for (const Json& token : old.at("added_tokens").elements()) {
        added.append(parse_json(edited(to_text(token), "\"normalized\":false", "\"normalized\":true")));
        if (added.elements().size() == 3) break;
    }
    const TokenizerData data = parse_huggingface(with_part(llama, "added_tokens", added), "tokenizer.json");
    CHECK(data.spelling(data.end_of_text) == "</s>");
    CHECK(data.named("<s>") == 1);
    CHECK_FALSE(data.named(" </s>"));
    CHECK_FALSE(data.named(""));
}

TEST_CASE("sentencepiece: an added token of which the normalizer leaves nothing is never found") {
    const std::string without = with_part(json_of_family("Llama 2"), "normalizer", parse_json(R"({"type": "Replace",
                                          "pattern": {"String": "X"}, "content": ""})"));
    const std::string with = with_added(without, 342, {"X", "YY"}, true);
    const Tokenizer plain(parse_huggingface(without, "tokenizer.json")),
        more(parse_huggingface(with, "tokenizer.json"));
    CHECK(encode(more, "aXb") == encode(plain, "ab"));
    CHECK(encode(more, "aXYYb") == Ids{encode(plain, "a")[0], 343, encode(plain, "b")[0]});
}

TEST_CASE("sentencepiece: only tokens of the model's own vocabulary stand for bytes") {
    const std::string json =
        with_added(json_of_family("TinyLlama, some bytes without a token"), 337, {"<0x9F>"}, false);
    // "\xc3\x9f" has no token of its own, nor has its second byte
    CHECK(encode(Tokenizer(parse_huggingface(json, "tokenizer.json")), "a\xc3\x9f") == Ids{257, 258, 0});
}

TEST_CASE("sentencepiece: a text is cut into words only where no merge reaches over their beginning") {
    const auto steps = [](const std::string& json) {
        return parse_huggingface(json, "tokenizer.json").pattern.steps.size();
    };
    CHECK(steps(json_of_family("Llama 2")) == 1);
    CHECK(steps(json_of_family("merges over words")) == 0);
    CHECK(steps(edited(json_of_family("Llama 2"), "\"ignore_merges\":false", "\"ignore_merges\":true")) == 0);
    const DocumentCuts cuts = cuts_for(Tokenizer(parse_huggingface(json_of_family("Llama 2"), "tokenizer.json")), {});
    CHECK(needs_whole_texts(cuts.pattern));
}

TEST_CASE("sentencepiece: a piece of a megabyte takes no time that grows with its square") {
    for (const char* family : {"Llama 2", "merges over words"}) {
        const Tokenizer tokenizer(parse_huggingface(json_of_family(family), "tokenizer.json"));
        std::string text;
        while (text.size() < 1'000'000) text += "abcdefgH\xc3\xa9\xe4\xbd\xa0";
        CHECK(decode(tokenizer, encode(tokenizer, text)) == text);
    }
}

TEST_CASE("sentencepiece: what is not as in the package is refused by name") {
    const std::string llama = json_of_family("Llama 2");
    const auto complaint = [](const std::string& json) -> std::string {
        try {
            parse_huggingface(json, "tokenizer.json");
            return "";
        } catch (const Error& problem) {
            CHECK(problem.kind() == ErrorKind::bad_data);
            return problem.message();
        }
    };
    const auto with = [&](const char* part, const char* value) {
        return complaint(with_part(llama, part, parse_json(value)));
    };
    const auto contains = [](const std::string& message, const char* part) {
        CAPTURE(message);
        CHECK(message.find(part) != std::string::npos);
    };
    contains(complaint(edited(llama, "\"BPE\"", "\"Unigram\"")), "only BPE is supported, not Unigram");
    contains(with("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": ""})"), "normalizer Precompiled");
    contains(with("normalizer", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"})"),
             "a Replace by an expression");
    contains(with("normalizer",
                  R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}, {"type": "NFC"}]})"),
             "NFC behind others");
    contains(with("pre_tokenizer", R"({"type": "ByteLevel"})"), "byte_fallback beside a ByteLevel step");
    contains(with("pre_tokenizer",
                  R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "second", "split": true})"),
             "found \"second\", expected first, always or never");
    contains(with("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space":
                  false}, {"type": "Metaspace", "replacement": "_", "split": false}]})"),
             "a Metaspace behind a ByteLevel step");
    contains(with("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits":
                  true}, {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false}]})"),
             "prepend_scheme first behind other steps");
    contains(with("decoder", "null"), "expected a Sequence of Replace, ByteFallback, Fuse and perhaps Strip");
    contains(with("decoder", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true})"),
             "expected a Sequence of Replace");
}
