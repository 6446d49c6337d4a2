#include "llmc/base/json.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

namespace {

// Where parsing fails, and why; nothing where it does not.
std::string complaint(const std::string& json) {
    try {
        const Json parsed = parse_json(json);
        CHECK(parsed == Json(parse_ordered_json(json)));
        return "";
    } catch (const Json::parse_error& problem) {
        CHECK_THROWS_AS(parse_ordered_json(json), Json::parse_error);
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
    const Json json = parse_json(R"([0, 7, 8, -1, 1.0, 1e300, true, "1", null, 18446744073709551615])");
    CHECK(whole_number(json[0], 7) == 0);
    CHECK(whole_number(json[1], 7) == 7);
    for (std::size_t i = 2; i < json.size(); i++) CHECK_THROWS_AS(whole_number(json[i], 7), Json::out_of_range);
    CHECK(whole_number(json.back(), UINT64_MAX) == UINT64_MAX);
}
