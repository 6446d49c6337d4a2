// Reads one field of one JSON line: {"id": 7, "text": "Once upon a time\n"} -> "Once upon a time\n".
//
// A scanner for exactly this, several times faster than building a document. The whole line is checked, so a broken
// line is reported and never half used. Not simdjson: it refuses bytes that are not UTF-8, which --invalid-utf8 decides
// here, and does not say where a line is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// JSON lines that a program has written say with the second of these lines that they are all there. A program that
// fails, or is killed, cannot say that it did; so the first line of the file announces the last one, and where that is
// missing the file was cut (input.h). Lines without an announcement are taken as they are.
inline constexpr std::string_view stream_begin = R"({"train_gpt_stream": "begin"})";
inline constexpr std::string_view stream_end = R"({"train_gpt_stream": "end"})";

struct JsonField {
    bool found = false;
    const char* other = nullptr;   // kind of a value that is no string ("null", "a number"); null: no such field
    std::size_t error_at = 0;      // place where the line is not JSON
    const char* error = nullptr;   // message about it; null: the line is JSON
};

// Looks for the string field `name` at the top level of the object `line`; writes its value, in UTF-8, to `value` (the
// last one counts where the name is repeated). Half a surrogate pair becomes U+FFFD. Bytes that are not UTF-8 pass, and
// so does a byte order mark at the beginning.
JsonField find_json_string(std::string_view line, std::string_view name, std::string& value);

// Finds where an object ends, in bytes that come piece by piece.
class ObjectEnd {
public:
    // Returns the place behind the object that begins with the first byte of `text`; npos: it does not end here. Then
    // the next call gets a longer text that begins the same. Does not check that the object is JSON.
    std::size_t find(std::string_view text);

private:
    std::size_t at_ = 0, depth_ = 0;
    bool in_string_ = false;
};

// Place where an object begins, for messages.
struct JsonLocation {
    const std::string& file;
    std::uint64_t line = 0, offset = 0;   // counted from 1, and in bytes
};

// Objects that --skip-bad-lines has passed over.
struct SkippedLines {
    std::uint64_t count = 0;
    std::string first;   // the message about the first one

    void add(const SkippedLines& later);
};

// Finds the string field `name` of an object that begins at `place` of a file, as find_json_string does.
// Error(bad_data) where there is none; with `skipped` it is counted there instead, and nothing returned.
std::optional<std::string_view> json_text(std::string_view line, const std::string& name, std::string& value,
                                          const JsonLocation& place, SkippedLines* skipped);
