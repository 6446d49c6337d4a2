// JSON, by nlohmann-json. Its reading and writing take seconds to compile, so json.cpp does it once for (nearly) all files.
// For host .cpp files only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

using Json = nlohmann::json;                  // keys sorted, found in logarithmic time
using OrderedJson = nlohmann::ordered_json;   // keys as written, for files that people read; found in linear time

// A whole text as JSON. Throws Json::parse_error, which knows the byte.
Json parse_json(std::string_view text);
OrderedJson parse_ordered_json(std::string_view text);

// The text of a value, on one line where `indent` is negative.
std::string to_text(const Json& json, int indent = -1);
std::string to_text(const OrderedJson& json, int indent = -1);
