// One field of one JSON line: {"id": 7, "text": "Once upon a time\n"} -> "Once upon a time\n".
//
// A scanner for exactly this, several times faster than building a document. The whole line is checked, so a broken
// line is reported and never half used. Not simdjson: it refuses bytes that are not UTF-8, which --invalid-utf8 decides
// here, and does not say where a line is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

struct JsonField {
    bool found = false;
    std::size_t error_at = 0;      // where the line is not JSON, with...
    const char* error = nullptr;   // ...what is wrong there; null: nothing
};

// Looks for the string field `name` at the top level of the object `line`; writes its value, in UTF-8, to `value` (the
// last one counts where the name is repeated). Half a surrogate pair becomes U+FFFD. Bytes that are not UTF-8 pass.
JsonField find_json_string(std::string_view line, std::string_view name, std::string& value);

// The same for a line at `offset` of `file`: the value. Error(bad_data) where there is none.
std::string_view json_text(std::string_view line, const std::string& name, std::string& value, const std::string& file,
                           std::uint64_t offset);
