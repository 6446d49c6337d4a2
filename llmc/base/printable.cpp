#include "llmc/base/printable.h"

#include <cstddef>

#include "llmc/base/utf8.h"

namespace {

// Bytes of the character that begins here; 0 if it is ill-formed or a control character.
std::size_t shown_length(std::string_view bytes) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    if (first < 0x80) return first == '\n' || first == '\t' || (first >= 0x20 && first < 0x7f) ? 1 : 0;
    if (valid_utf8_prefix(bytes.substr(0, 4)) == 0) return 0;
    const Utf8Char character = decode_utf8(bytes.data());
    return character.code < 0xa0 ? 0 : character.length;   // controls are below 0xa0
}

}   // namespace

std::string printable(std::string_view bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string result;
    while (!bytes.empty()) {
        const std::size_t length = shown_length(bytes);
        if (length > 0) {
            result += bytes.substr(0, length);
        } else {
            const auto code = static_cast<unsigned char>(bytes[0]);
            result += {'\\', 'x', digits[code >> 4], digits[code & 15]};
        }
        bytes.remove_prefix(length > 0 ? length : 1);
    }
    return result;
}
