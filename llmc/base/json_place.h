// Where in a JSON text a value stands: so that messages about its content can name an offset, which a parsed document
// no longer knows. Looks for it anew, so only for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Offset of the value that a JSON pointer (RFC 6901, e.g. "/model/merges/3") names, of the last where a key is given
// twice. Where there is none: of the innermost object or list on the way to it that does exist. `json` must be valid.
std::size_t json_place(std::string_view json, std::string_view pointer);

// A key as a part of a pointer: "/" and the key with ~ and / escaped.
std::string json_pointer_part(std::string_view key);
