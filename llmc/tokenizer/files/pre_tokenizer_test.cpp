// Pre-tokenizers of several steps, as tokenizer.json files have them.

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/input.h"
#include "llmc/tokenizer/split/split_testing.h"

namespace {

struct Recorded {
    const char *steps, *pieces;   // the pieces spelled in the characters of bytes, a bar behind each but the last
};

// As tokenizers 0.23.3 splits the text.
const char* const some_text = "It's 12345 \u0663\u0664x,\n\n \"\u4f60\u597d\u061d\" a\u00b2 DON'T...  end";
const Recorded recorded[] = {
    {R"js([{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}])js",
     "It|'s|\u0120|1|2|3|4|5|\u0120|\u00d9\u00a3|\u00d9\u00a4|x|,|\u010a\u010a|\u0120\"|"
     "\u00e4\u00bd\u0142\u00e5\u00a5\u00bd|\u00d8\u013f\"|\u0120a|\u00c2\u00b2|\u0120DON|'|T|...|\u0120|\u0120end"},
    {R"js([{"type":"Digits","individual_digits":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It's\u0120|12345|\u0120|\u00d9\u00a3\u00d9\u00a4|x,"
     "\u010a\u010a\u0120\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f\"\u0120a|\u00c2\u00b2|\u0120DON'T..."
     "\u0120\u0120end"},
    {R"js([{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[一-龥]+"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":" ?\\p{L}+|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It|'|s|\u0120|123|45|\u0120|\u00d9\u00a3\u00d9\u00a4|x|,|\u010a\u010a\u0120|\"|"
     "\u00e4\u00bd\u0142\u00e5\u00a5\u00bd|\u00d8\u013f\"|\u0120a|\u00c2\u00b2|\u0120DON|'|T|...|\u0120\u0120|end"},
    {R"js([{"type":"Punctuation","behavior":"Contiguous"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},{"type":"Digits","individual_digits":false},{"type":"Split","pattern":{"Regex":"[0-9][0-9][0-9]"},"behavior":"Isolated","invert":false}])js",
     "It|'|s|\u0120|123|45|\u0120\u00d9\u00a3\u00d9\u00a4|x|,|\u010a\u010a\u0120|\"|\u00e4|\u00bd|\u0142\u00e5\u00a5|"
     "\u00bd|\u00d8\u013f|\"|\u0120a|\u00c2|\u00b2|\u0120DON|'|T|...|\u0120|\u0120end"},
    {R"js([{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}])js",
     "\u0120It|'s|\u012012345|\u0120\u00d9\u00a3\u00d9\u00a4|x|,|\u010a\u010a|\u0120\"|"
     "\u00e4\u00bd\u0142\u00e5\u00a5\u00bd|\u00d8\u013f\"|\u0120a|\u00c2\u00b2|\u0120DON|'|T|...|\u0120|\u0120end"},
    {R"js([{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}])js",
     "\u0120It's|\u0120|\u012012345|\u0120|\u0120\u00d9\u00a3\u00d9\u00a4x,|\u0120\u010a\u010a\u0120|"
     "\u0120\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f\"|\u0120|\u0120a\u00c2\u00b2|\u0120|\u0120DON'T...|"
     "\u0120\u0120|\u0120end"},
    {R"js([{"type":"Punctuation","behavior":"Removed"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It|s\u012012345\u0120\u00d9\u00a3\u00d9\u00a4x|\u010a\u010a\u0120|"
     "\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f|\u0120a\u00c2\u00b2\u0120DON|T|\u0120\u0120end"},
    {R"js([{"type":"Split","pattern":{"String":"..."},"behavior":"MergedWithPrevious","invert":false},{"type":"Punctuation","behavior":"MergedWithNext"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It|'s\u012012345\u0120\u00d9\u00a3\u00d9\u00a4x|,\u010a\u010a\u0120|"
     "\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f|\"\u0120a\u00c2\u00b2\u0120DON|'T|.|.|.|\u0120\u0120end"},
    {R"js([{"type":"Split","pattern":{"Regex":"\\s*"},"behavior":"MergedWithPrevious","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "I|t|'|s\u0120|1|2|3|4|5\u0120|\u00d9\u00a3|\u00d9\u00a4|x|,\u010a\u010a\u0120|\"|\u00e4\u00bd\u0142|"
     "\u00e5\u00a5\u00bd|\u00d8\u013f|\"\u0120|a|\u00c2\u00b2\u0120|D|O|N|'|T|.|.|.\u0120\u0120|e|n|d"},
    {R"js([{"type":"Split","pattern":{"Regex":"[A-Z]"},"behavior":"MergedWithNext","invert":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "I|t's\u012012345\u0120\u00d9\u00a3\u00d9\u00a4x,"
     "\u010a\u010a\u0120\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f\"\u0120a\u00c2\u00b2\u0120D|O|N|'T|..."
     "\u0120\u0120end"},
    {R"js([{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Removed","invert":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It|s|x|\u00e4\u00bd\u0142\u00e5\u00a5\u00bd|a|DON|T|end"},
    {R"js([{"type":"Split","pattern":{"Regex":"(?=[A-Z])"},"behavior":"MergedWithNext","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It's\u012012345\u0120\u00d9\u00a3\u00d9\u00a4x,"
     "\u010a\u010a\u0120\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f\"\u0120a\u00c2\u00b2\u0120|D|O|N'|T..."
     "\u0120\u0120end"},
    {R"js([{"type":"Split","pattern":{"Regex":"[.,\\s]"},"behavior":"Contiguous","invert":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}])js",
     "It's|\u0120|12345|\u0120|\u00d9\u00a3\u00d9\u00a4x|,\u010a\u010a\u0120|"
     "\"\u00e4\u00bd\u0142\u00e5\u00a5\u00bd\u00d8\u013f\"|\u0120|a\u00c2\u00b2|\u0120|DON'T|...\u0120\u0120|end"},
};

std::string json_with(const std::string& pre_tokenizer) {
    std::string json = to_huggingface(Tokenizer::bytes().data());
    const std::size_t begin = json.find("\"pre_tokenizer\": ") + 17, end = json.find("\"post_processor\"");
    REQUIRE(end > begin);
    return json.replace(begin, end - begin, pre_tokenizer + ",");
}

// Returns the pieces as they are recorded.
std::string spelled_pieces(const SplitPattern& pattern, const std::string& text) {
    std::string spelled;
    for (const std::string& piece : pieces_of(*make_splitter(pattern), text)) {
        spelled += (spelled.empty() ? "" : "|") + to_characters(piece);
    }
    return spelled;
}

}   // namespace

TEST_CASE("pre-tokenizers: steps cut and change a text as the tokenizers package's, also when they are written back") {
    if (!has_pcre2()) return;
    for (const Recorded& known : recorded) {
        CAPTURE(known.steps);
        const std::string json = json_with(R"({"type":"Sequence","pretokenizers":)" + std::string(known.steps) + "}");
        const TokenizerData data = parse_huggingface(json, "tokenizer.json");
        CHECK(spelled_pieces(data.pattern, some_text) == known.pieces);
        const TokenizerData again = parse_huggingface(to_huggingface(data), "tokenizer.json");
        CHECK(spelled_pieces(again.pattern, some_text) == known.pieces);
        CHECK(Tokenizer(again).hash_of_rules() == Tokenizer(data).hash_of_rules());
    }
}

TEST_CASE("pre-tokenizers: the ids of a text are those of its pieces, whatever steps have put in or left out") {
    if (!has_pcre2()) return;
    const std::string json =
        json_with(R"({"type":"Sequence","pretokenizers":[{"type":"Punctuation","behavior":"Removed"},)"
                  R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})");
    const Tokenizer tokenizer(parse_huggingface(json, "tokenizer.json"));
    for (const InvalidUtf8 invalid : {InvalidUtf8::tiktoken, InvalidUtf8::split}) {
        std::vector<std::uint32_t> ids;
        Encoder(tokenizer, {SpecialText::ordinary, invalid}).encode("a.b.\xff", ids);
        CHECK(ids == std::vector<std::uint32_t>{' ', 'a', ' ', 'b', 0xff});
    }
    const DocumentCuts cuts = cuts_for(tokenizer, {});
    CHECK(!cuts.anywhere);
    CHECK(needs_whole_texts(cuts.pattern));
}

TEST_CASE("pre-tokenizers: a list of normalizers may be empty, or hold normal form C") {
    std::string json = to_huggingface(Tokenizer::bytes().data());
    const auto normalizers = [&](const std::string& list) {
        std::string other = json;
        const std::string none = "\"normalizer\": null";
        other.replace(other.find(none), none.size(),
                      "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": " + list + "}");
        return parse_huggingface(other, "tokenizer.json").pattern.nfc;
    };
    CHECK(!normalizers("[]"));
    CHECK(normalizers("[{\"type\": \"NFC\"}]"));
    CHECK_THROWS_WITH_AS(normalizers("[{\"type\": \"NFKC\"}]"), doctest::Contains("normalizer NFKC is not supported"),
                         Error);
}

TEST_CASE("pre-tokenizers: what is not as in the package is refused") {
    const auto complaint = [](const std::string& steps) -> std::string {
        try {
            parse_huggingface(json_with(R"({"type":"Sequence","pretokenizers":)" + steps + "}"), "tokenizer.json");
            return "";
        } catch (const Error& problem) {
            CHECK(problem.kind() == ErrorKind::bad_data);
            return problem.message();
        }
    };
    CHECK(complaint(R"([{"type":"ByteLevel"},{"type":"ByteLevel"}])").find("two ByteLevel steps") != std::string::npos);
    CHECK(complaint(R"([{"type":"Digits","individual_digits":true}])").find("no ByteLevel step") != std::string::npos);
    std::string many = "[";
    for (int i = 0; i < 40; i++) many += R"({"type":"Digits","individual_digits":true},)";
    CHECK(complaint(many + R"({"type":"ByteLevel"}])").find("more than 32 steps") != std::string::npos);
    CHECK(complaint(R"([{"type":"UnicodeScripts"},{"type":"ByteLevel"}])").find("a step of type UnicodeScripts") !=
          std::string::npos);
    CHECK(complaint(R"([{"type":"Punctuation","behavior":"Apart"},{"type":"ByteLevel"}])")
              .find("the behavior \"Apart\"") != std::string::npos);
}

TEST_CASE("pre-tokenizers: an unknown token that no text has use for may be missing") {
    std::string json = to_huggingface(Tokenizer::bytes().data());
    const std::string none = "\"unk_token\": null";
    REQUIRE(json.find(none) != std::string::npos);
    json.replace(json.find(none), none.size(), "\"unk_token\": \"[UNK]\"");
    CHECK(!parse_huggingface(json, "tokenizer.json").unknown);
}
