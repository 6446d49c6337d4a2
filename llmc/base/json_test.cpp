#include "llmc/base/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "llmc/base/error.h"

namespace {

// Returns the place and reason of a parse error; empty if there is none.
std::string complaint(const std::string& json) {
    try {
        const Json parsed = parse_json(json);
        CHECK(parse_json(to_text(parsed)) == parsed);
        return "";
    } catch (const JsonSyntaxError& problem) {
        return text(problem.byte, " ", problem.what());
    }
}

bool fails(const std::string& json, std::size_t byte, const std::string& what) {
    const std::string found = complaint(json);
    CAPTURE(found);
    const bool right = found.starts_with(text(byte, " ")) && found.find(what) != std::string::npos;
    CHECK(right);
    return right;
}

std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
    std::string json;
    for (std::size_t i = 0; i < depth; i++) json += open;
    json += "7";
    for (std::size_t i = 0; i < depth; i++) json += close;
    return json;
}

}   // namespace

TEST_CASE("json: nesting has a limit, below which the stack bears it") {
    CHECK(complaint(nested(deepest_json, "[", "]")) == "");
    CHECK(complaint(nested(deepest_json, "{\"a\":", "}")) == "");
    CHECK(to_text(parse_json(nested(deepest_json, "[", "]"))).size() == 2 * deepest_json + 1);
    fails(nested(deepest_json + 1, "[", "]"), deepest_json + 1, "nest deeper than 256");
    fails(nested(deepest_json + 1, "{\"a\":", "}"), 5 * deepest_json + 1, "nest deeper than 256");
    fails(nested(100'000, "[", "]"), deepest_json + 1, "nest deeper than 256");
    fails(std::string(1'000'000, '['), deepest_json + 1, "nest deeper than 256");
}

TEST_CASE("json: a key twice in an object is refused, in different objects it is not") {
    CHECK(complaint(R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}})") == "");
    fails(R"({"a": 1, "b": 2, "a": 1})", 20, "'a' is there twice");
    fails(R"([{"b": {"a": 1, "\u0061": 2}}])", 24, "'a' is there twice");
}

TEST_CASE("json: whatever else is wrong is a parse_error with its byte and a short message") {
    fails("[1, 2", 6, "unexpected end of input");
    fails("[1e999]", 6, "number overflow");
    fails("\"\xff\"", 2, "invalid string");
    CHECK(complaint("[\"" + std::string(100'000, 'x')).size() < 400);
}

TEST_CASE("json: whole numbers, and nothing that only converts to one") {
    const Json json = parse_json(R"([0, 7, 8, -0, -1, 1.0, 1e300, true, "1", null, 18446744073709551615])");
    const std::vector<Json>& values = json.elements();
    CHECK(values[0].as_whole(7) == 0);
    CHECK(values[1].as_whole(7) == 7);
    for (std::size_t i = 2; i < values.size(); i++) CHECK_THROWS_AS(values[i].as_whole(7), JsonError);
    CHECK(values.back().as_whole(UINT64_MAX) == UINT64_MAX);
}

TEST_CASE("json: what is missing or of another kind is told, with the beginning of what was found") {
    const Json json = parse_json(R"({"a": [1, "x"], "b": {"c": null}})");
    CHECK(json.at("a").elements().size() == 2);
    CHECK(json.find("z") == nullptr);
    CHECK(json.at("a").find("z") == nullptr);
    CHECK_THROWS_WITH_AS(json.at("z"), "there is no \"z\"", JsonError);
    CHECK_THROWS_WITH_AS(json.at("a").at("z"), "found [1,\"x\"], expected an object", JsonError);
    CHECK_THROWS_WITH_AS(json.at("b").elements(), "found {\"c\":null}, expected a list", JsonError);
    CHECK_THROWS_WITH_AS(json.at("b").at("c").as_text(), "found null, expected a text", JsonError);
    CHECK_THROWS_WITH_AS(json.at("b").as_bool(), "found {\"c\":null}, expected true or false", JsonError);
    CHECK_THROWS_WITH_AS(json.at("a").elements()[1].as_number(), "found \"x\", expected a number", JsonError);
    const std::string most = std::string(300, 'x');
    CHECK_THROWS_WITH_AS(Json(most).as_number(), ("found \"" + most.substr(0, 199) + ", expected a number").c_str(),
                         JsonError);
}

TEST_CASE("json: a value knows where it begins in the text, and a complaint about it too") {
    const std::string text = R"( {"a": [1, {"b": "x,]}\"", "c/~": -3e1} , [] ], "": {}, "\u0064" :4, "e":null,
        "f"	: [ true,false , "" ] } )";
    const Json json = parse_json(text);
    auto at = [&](const Json& value) { return text.substr(value.offset(), 4); };
    CHECK(json.offset() == 1);
    CHECK(at(json.at("a")) == "[1, ");
    const std::vector<Json>& list = json.at("a").elements();
    CHECK(at(list[0]) == "1, {");
    CHECK(at(list[1]) == "{\"b\"");
    CHECK(at(list[1].at("b")) == "\"x,]");
    CHECK(at(list[1].at("c/~")) == "-3e1");
    CHECK(at(list[2]) == "[] ]");
    CHECK(at(json.at("")) == "{}, ");
    CHECK(at(json.at("d")) == "4, \"");
    CHECK(at(json.at("e")) == "null");
    CHECK(at(json.at("f")) == "[ tr");
    CHECK(at(json.at("f").elements()[0]) == "true");
    CHECK(at(json.at("f").elements()[1]) == "fals");
    CHECK(at(json.at("f").elements()[2]) == "\"\" ]");
    CHECK(parse_json("7").offset() == 0);
    auto complained_at = [&](auto wrong) {
        try {
            wrong();
        } catch (const JsonError& problem) {
            return text.substr(problem.offset, 4);
        }
        return std::string("nothing");
    };
    CHECK(complained_at([&] { list[1].at("b").as_number(); }) == "\"x,]");
    CHECK(complained_at([&] { list[1].at("missing"); }) == "{\"b\"");
    CHECK(complained_at([&] { list[0].at("no object"); }) == "1, {");
    CHECK(complained_at([&] { list[0].as_whole(0); }) == "1, {");
}

TEST_CASE("json: values are equal where their numbers, and members in any order, are") {
    CHECK(parse_json("[1, 1.0, -1]") == parse_json("[1.0, 1, -1.0]"));
    CHECK(parse_json(R"({"a": 1, "b": [2]})") == parse_json(R"({"b": [2], "a": 1})"));
    for (const char* other : {"[2]", "[1, 1]", "[true]", "[\"1\"]", "[null]", "{\"1\": 1}", "1"}) {
        CHECK_FALSE(parse_json("[1]") == parse_json(other));
    }
    CHECK_FALSE(parse_json(R"({"a": 1})") == parse_json(R"({"b": 1})"));
}

TEST_CASE("json: the text is the library's, keys in the order in which they were added") {
    Json json = Json::object({{"z", 1}, {"a", Json::array({nullptr, true, -7, 0.1, 1e300, "\"\n\x01 \u00e9"})}});
    REQUIRE(json.add("empty", Json::array()) != nullptr);
    json.add("none", Json::object());
    CHECK(json.add("z", 2) == nullptr);
    const std::string expected = nlohmann::ordered_json::parse(to_text(json)).dump();
    CHECK(to_text(json) == expected);
    CHECK(expected.starts_with(R"({"z":1,"a":[null,true,-7,0.1,1e+300,)"));
    for (const int indent : {0, 1, 2})
        CHECK(to_text(json, indent) == nlohmann::ordered_json::parse(expected).dump(indent));
    CHECK_THROWS_AS(to_text(Json("\xff")), JsonError);
    CHECK_THROWS_AS(to_text(Json::object({{"\xff", 1}})), JsonError);
    for (int c = 0; c < 0x80; c++) {
        const std::string written = std::string(1, static_cast<char>(c)) + "\u00e9";
        CHECK(to_text(Json(written)) == nlohmann::ordered_json(written).dump());
    }
}

TEST_CASE("json: an object of 100,000 keys is read, and each found") {
    std::string text = "{";
    for (int i = 0; i < 100'000; i++) text += "\"key " + std::to_string(i) + "\":" + std::to_string(i) + ",";
    text.back() = '}';
    const Json json = parse_json(text);
    CHECK(json.members().size() == 100'000);
    for (int i = 0; i < 100'000; i++) REQUIRE(json.at("key " + std::to_string(i)) == i);
}

TEST_CASE("json: limits end the parsing where they are exceeded") {
    const auto complaint = [](std::string_view text, const JsonLimits& limits) {
        try {
            parse_json(text, limits);
            return std::string();
        } catch (const JsonSyntaxError& error) {
            return std::to_string(error.byte) + ": " + error.what();
        }
    };
    CHECK(complaint(R"({"a": [1, 2], "b": 3})", {.values = 5, .elements = 2}) == "");
    // what follows is no JSON: it is not reached
    CHECK(complaint(R"({"a": [1, 2], "b": 3 ?)", {.values = 4}) == "21: more than 4 values");
    CHECK(complaint("[[1, 2], [1, 2, 3 ?", {.elements = 2}) == "18: a list of more than 2 elements");
    CHECK(complaint("[[], [], [] ?", {.elements = 2}) == "10: a list of more than 2 elements");
    std::string many = "[";
    for (std::size_t i = 0; i < most_json_values; i++) many += "1,";
    CHECK(complaint(many, {}).find("more than 4194304 values") != std::string::npos);
}

TEST_CASE("json: keys are found in objects of few and of many members, and none is there twice") {
    Json json = Json::object();
    for (int i = 0; i < 20; i++) {
        REQUIRE(json.add("key " + std::to_string(i), i) != nullptr);
        for (int known = 0; known <= i; known++) {
            CHECK(json.at("key " + std::to_string(known)) == known);
            CHECK(json.add("key " + std::to_string(known), 0) == nullptr);
        }
        CHECK_FALSE(json.contains("key " + std::to_string(i + 1)));
        CHECK(Json(json) == json);
    }
}
