// JSON, by nlohmann-json. Its reading and writing take seconds to compile, so json.cpp does it once for (nearly) all
// files. For host .cpp files only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

using Json = nlohmann::json;                  // keys sorted, found in logarithmic time
using OrderedJson = nlohmann::ordered_json;   // keys as written, for files that people read; found in linear time

// Arrays and objects within each other: no file of ours has ten. The library's writing and copying need stack for each.
inline constexpr std::size_t deepest_json = 256;

// A whole text as JSON. Beyond what JSON demands, no object has a key twice (a parser keeps one of the two, and
// programs differ in which), nothing nests deeper than deepest_json, and every number is finite. Else throws
// Json::parse_error, which knows the byte (counted from 1), with a message of bounded length.
Json parse_json(std::string_view text);
OrderedJson parse_ordered_json(std::string_view text);   // quadratic in the keys of an object: for short objects

// A whole number from 0 to `largest`; anything else throws Json::out_of_range. Json::get() makes a number of whatever
// it finds: of -1, 1e300, 0.5 and true.
std::uint64_t whole_number(const Json& value, std::uint64_t largest);

// The text of a value, on one line where `indent` is negative.
std::string to_text(const Json& json, int indent = -1);
std::string to_text(const OrderedJson& json, int indent = -1);
