#include "llmc/base/json_place.h"

#include <doctest/doctest.h>

TEST_CASE("json_place: the offset of a value, or of the innermost place that exists") {
    const std::string json = R"( {"a": [1, {"b": "x,]}\"", "c/~": 3} , [] ], "": {}, "\u0064" :4, "e":null, "e": 5})";
    auto text_at = [&](const std::string& pointer) { return json.substr(json_place(json, pointer), 4); };
    CHECK(json_place(json, "") == 1);
    CHECK(text_at("/a") == "[1, ");
    CHECK(text_at("/a/0") == "1, {");
    CHECK(text_at("/a/1") == "{\"b\"");
    CHECK(text_at("/a/1/b") == "\"x,]");
    CHECK(text_at("/a/1" + json_pointer_part("c/~")) == "3} ,");
    CHECK(text_at("/a/2") == "[] ]");
    CHECK(text_at("/a/2/0") == "[] ]");
    CHECK(text_at("/a/7/more") == "[1, ");
    CHECK(text_at("/") == "{}, ");
    CHECK(text_at("/d") == "4, \"");
    CHECK(text_at("/e") == "5}");
    CHECK(json_place(json, "/missing/x") == 1);
    CHECK(json_place("7", "/a") == 0);
}
