#include "llmc/base/printable.h"

#include <cstddef>
#include <cstdint>

namespace {

// Bytes of the character that begins here; 0: none that is well-formed and shown.
std::size_t shown_length(std::string_view bytes) {
    const auto at = [&](std::size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u; };
    const std::uint32_t lead = at(0);
    if (lead == '\n' || lead == '\t' || (lead >= 0x20 && lead < 0x7f)) return 1;
    const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                               : lead >= 0xe0 && lead <= 0xef ? 3
                               : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                              : 0;
    if (length == 0) return 0;
    std::uint32_t code = lead & (0x7fu >> length);
    for (std::size_t i = 1; i < length; i++) {
        if ((at(i) & 0xc0) != 0x80) return 0;
        code = code << 6 | (at(i) & 0x3f);
    }
    constexpr std::uint32_t smallest[] = {0, 0, 0xa0, 0x800, 0x10000};   // of each length; below U+00A0 are controls
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < smallest[length] || surrogate || code > 0x10ffff ? 0 : length;
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
