// Tells what a file of the input is, by its name and its first bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

enum class InputFormat { automatic, text, jsonl };

// A list is one JSON array of objects, in however many lines.
enum class InputKind { text, json_lines, json_list };

// Bytes at the beginning of a file that are enough to tell its kind.
inline constexpr std::size_t kind_bytes = 4096;

// Returns the kind of a file. `beginning`: the first kind_bytes of its content, uncompressed, or all where there are
// fewer. With InputFormat::automatic JSON lines are files
//   - with the suffix .jsonl, .ndjson, .jl or .jsonlines, before .gz or .zst, in upper or lower case;
//   - with the suffix .json or .txt, or without one (standard input too), that begin with an object or a list of
//     objects: with a brace and a quote, or a bracket and these, white space aside (but an object whose first line is a
//     brace alone is text); and those that are an empty list, and nothing else.
// JSON that begins with [ and {, or is an empty list, is a list; any other line that begins with [ is a bad one.
// Error(bad_data) of automatic where the bytes are something else than text, and of all but text where they are a
// pointer of Git LFS.
InputKind kind_of_input(const std::string& name, std::string_view beginning, InputFormat format);
