#include "llmc/tokenizer/jsonl.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "llmc/base/error.h"

namespace {

struct Result {
    JsonField field;
    std::string value;
};

Result find(std::string_view line, std::string_view name = "text") {
    Result result;
    result.field = find_json_string(line, name, result.value);
    return result;
}

}   // namespace

TEST_CASE("tokenizer_jsonl: finds the field among values of every kind") {
    Result r =
        find(R"( {"id": -1.5e+3, "a": [1, {"text": "no"}, []], "b": {"text": null}, "c": true, "text": "yes"} )");
    CHECK(r.field.found);
    CHECK(r.field.error == nullptr);
    CHECK(r.value == "yes");
    CHECK(find(R"({"text": "one", "text": "two"})").value == "two");
    CHECK(find(R"({"other": "x"})", "other").value == "x");
    CHECK_FALSE(find(R"({"other": "x"})").field.found);
    CHECK_FALSE(find(R"({"text": 7})").field.found);
    CHECK_FALSE(find("{}").field.found);
}

TEST_CASE("tokenizer_jsonl: escapes") {
    CHECK(find(R"({"text": "a\"b\\c\/d\b\f\n\r\te"})").value == "a\"b\\c/d\b\f\n\r\te");
    CHECK(find(R"({"text": "\u0041\u00e9\u4e2d\ud83d\ude00"})").value == "A\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80");
    CHECK(find(R"({"text": "\ud83d!\ude00\ud83d\u0041"})").value ==
          "\xef\xbf\xbd!\xef\xbf\xbd\xef\xbf\xbd"
          "A");
    CHECK(find(R"({"text": "\u0000"})").value == std::string(1, '\0'));
    CHECK(find(R"({"\u0074ext": "key"})").value == "key");
    CHECK(find("{\"text\": \"a\xff\"}").value == "a\xff");   // not UTF-8
}

TEST_CASE("tokenizer_jsonl: what is not JSON is refused where it is wrong") {
    struct Wrong {
        const char* line;
        std::size_t at;
    };
    for (Wrong wrong :
         {Wrong{"", 0}, Wrong{"[]", 0}, Wrong{"{", 1}, Wrong{R"({"text": "abc)", 13}, Wrong{R"({"text" "a"})", 8},
          Wrong{R"({"text": "a",})", 13}, Wrong{R"({"text": "a"} x)", 14}, Wrong{R"({"text": "\x"})", 11},
          Wrong{R"({"text": "\u12g4"})", 14}, Wrong{"{\"text\": \"a\nb\"}", 11}, Wrong{R"({"n": -})", 7},
          Wrong{R"({"n": 1.})", 8}, Wrong{R"({"n": [1 2]})", 9}, Wrong{R"({"n": tru})", 6}}) {
        Result r = find(wrong.line);
        CHECK_MESSAGE(r.field.error != nullptr, wrong.line);
        CHECK_MESSAGE(r.field.error_at == wrong.at, wrong.line);
    }
    CHECK(find("{\"n\": " + std::string(100000, '[')).field.error != nullptr);
}

TEST_CASE("tokenizer_jsonl: what a line lacks is told with its place, or counted") {
    struct Wrong {
        const char *line, *message;
    };
    const Wrong all[] = {
        {R"({"text": null})", "a.jsonl: line 7, offset 90: the field \"text\" is null, expected a string"},
        {R"({"text": 1.5})", "is a number, expected"},
        {R"({"text": ["a"]})", "is a list, expected"},
        {R"({"text": {"text": "a"}})", "is an object, expected"},
        {R"({"text": true})", "is true, expected"},
        {R"({"text": false})", "is false, expected"},
        {R"({"text": "a", "text": null})", "is null, expected"},
        {R"({"txt": "a"})", "line 7, offset 90: this line has no string field \"text\""},
        {R"({})", "has no string field"},
        {R"({"score": NaN, "text": "a"})", "line 7, offset 100: this line is not JSON: NaN is no value"},
        {R"({"text": "a", "b": [Infinity]})", "offset 110: this line is not JSON: Infinity is no value"},
        {R"({"text": "a", "b": -Infinity})", "offset 109: this line is not JSON: Infinity is no value"},
        {"{\"a\": 1,\n\n\"b\" 2}", "line 9, offset 104: this line is not JSON: expected ':'"},
        {"text", "offset 90: this line is not JSON: expected an object"}};
    const std::string file = "a.jsonl";
    std::string value;
    SkippedLines skipped;
    for (const Wrong& wrong : all) {
        CHECK_THROWS_WITH_AS(json_text(wrong.line, "text", value, {file, 7, 90}, nullptr),
                             doctest::Contains(wrong.message), Error);
        CHECK_FALSE(json_text(wrong.line, "text", value, {file, 7, 90}, &skipped));
    }
    CHECK(skipped.count == std::size(all));
    CHECK(skipped.first == all[0].message);
    CHECK(json_text("\xef\xbb\xbf{\"text\": \"a\"}", "text", value, {file, 7, 90}, &skipped) == "a");
    SkippedLines sum;
    sum.add({});
    sum.add(skipped);
    sum.add({2, "later"});
    CHECK(sum.count == std::size(all) + 2);
    CHECK(sum.first == skipped.first);
}

TEST_CASE("tokenizer_jsonl: the end of an object, however its bytes come") {
    const std::string object = R"({"a": "}\\\"]}", "b": [{"c": "\\"}, []], "text": "x"})", all = object + "} , {";
    for (std::size_t at_once = 1; at_once < all.size(); at_once++) {
        ObjectEnd end;
        std::size_t found = std::string_view::npos, given = 0;
        while (found == std::string_view::npos && given < all.size()) {
            given = std::min(given + at_once, all.size());
            found = end.find(std::string_view(all).substr(0, given));
            if (given < object.size()) CHECK(found == std::string_view::npos);
        }
        CHECK(found == object.size());
    }
}

TEST_CASE("tokenizer_jsonl: agrees with a full parser on random and damaged lines") {
    std::mt19937 random(6);
    const std::string alphabet = R"({}[]",:\u0aef19-+.eEtrusalnx )";
    for (int i = 0; i < 20000; i++) {
        std::string line = R"({"a": [1, -2.5e3, true, null, {"b": "c\n"}], "text": "x\u00e9\\y", "z": false})";
        for (int edits = static_cast<int>(random() % 4); edits > 0; edits--) {
            line[random() % line.size()] = alphabet[random() % alphabet.size()];
        }
        nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
        Result r = find(line);
        if (r.value.find("\xef\xbf\xbd") != std::string::npos) continue;   // half a pair: theirs is an error
        REQUIRE_MESSAGE((r.field.error == nullptr) == (!parsed.is_discarded() && parsed.is_object()), line);
        if (r.field.error != nullptr) continue;
        bool has = parsed.contains("text") && parsed["text"].is_string();
        REQUIRE(r.field.found == has);
        if (has) CHECK(r.value == parsed["text"].get<std::string>());
    }
}
