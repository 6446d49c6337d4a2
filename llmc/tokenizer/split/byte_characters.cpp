#include "llmc/tokenizer/split/byte_characters.h"

#include <array>

#include "llmc/base/utf8.h"

namespace {

// Returns true for bytes that GPT-2 spells as themselves; the others get characters from U+0100 on, in their order.
constexpr bool spelled_as_itself(unsigned byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

struct ByteCharacters {
    std::array<std::uint16_t, 256> of_byte{};
    std::array<std::int16_t, 0x200> to_byte{};
    constexpr ByteCharacters() {
        to_byte.fill(-1);
        std::uint16_t next = 0x100;
        for (unsigned byte = 0; byte < 256; byte++) {
            of_byte[byte] = spelled_as_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
            to_byte[of_byte[byte]] = static_cast<std::int16_t>(byte);
        }
    }
};
constexpr ByteCharacters byte_characters;

}   // namespace

std::uint32_t byte_to_character(unsigned char byte) { return byte_characters.of_byte[byte]; }

std::string to_characters(std::string_view bytes) {
    std::string out;
    for (char byte : bytes) append_utf8(byte_to_character(static_cast<unsigned char>(byte)), out);
    return out;
}

bool from_characters(std::string_view characters, std::string& bytes) {
    if (valid_utf8_prefix(characters) != characters.size()) return false;
    for (std::size_t at = 0; at < characters.size();) {
        Utf8Char c = decode_utf8(characters.data() + at);
        if (c.code >= byte_characters.to_byte.size() || byte_characters.to_byte[c.code] < 0) return false;
        bytes.push_back(static_cast<char>(byte_characters.to_byte[c.code]));
        at += c.length;
    }
    return true;
}

std::optional<unsigned char> byte_of_token(std::string_view characters) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    if (characters.size() != 6 || !characters.starts_with("<0x") || characters.back() != '>') return std::nullopt;
    const std::size_t high = digits.find(characters[3]), low = digits.find(characters[4]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    return static_cast<unsigned char>(high << 4 | low);
}
