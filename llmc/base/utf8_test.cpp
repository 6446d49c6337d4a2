#include "llmc/base/utf8.h"

#include <doctest/doctest.h>

#include <iterator>
#include <random>
#include <string>

namespace {

// The definition: a character's bytes are those that its code point is written with.
std::size_t reference_prefix(const std::string& text) {
    std::size_t at = 0;
    while (at < text.size()) {
        std::size_t length = 0;
        for (std::size_t bytes = 1; bytes <= 4 && at + bytes <= text.size() && length == 0; bytes++) {
            const std::uint32_t first_bits[] = {0x7f, 0x1f, 0x0f, 0x07};
            std::uint32_t code = static_cast<unsigned char>(text[at]) & first_bits[bytes - 1];
            for (std::size_t i = 1; i < bytes; i++)
                code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3f);
            if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) continue;
            std::string written;
            append_utf8(code, written);
            if (text.compare(at, bytes, written) == 0) length = bytes;
        }
        if (length == 0) return at;
        at += length;
    }
    return at;
}

const std::string units[] = {"a", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"};

std::string random_characters(std::mt19937& random, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; i++) text += units[random() % std::size(units)];
    return text;
}

}   // namespace

TEST_CASE("utf8: the valid beginning of a text, wherever and however it is damaged") {
    std::mt19937 random(1);
    for (int i = 0; i < 20000; i++) {
        std::string text = random_characters(random, random() % 80);
        const std::size_t damages = text.empty() ? 0 : random() % 3;
        for (std::size_t j = 0; j < damages; j++) text[random() % text.size()] = static_cast<char>(random());
        text.resize(text.size() - random() % (text.size() / 2 + 1));
        CHECK(valid_utf8_prefix(text) == reference_prefix(text));
    }
}

TEST_CASE("utf8: every two bytes, and every third and fourth behind the first ones that have some") {
    // so long that the bytes are looked at by vector instructions, among valid ones
    const std::string before = "\xc3\xa9" + std::string(37, '.') + "\xe4\xb8\xad 0123456789";
    const std::string behind = "x\xc3\xa9" + std::string(70, '.');
    const auto check = [&](const std::string& bytes) {
        const std::string text = before + bytes + behind;
        if (valid_utf8_prefix(text) != reference_prefix(text)) CHECK(valid_utf8_prefix(text) == reference_prefix(text));
    };
    for (int first = 0; first < 256; first++) {
        for (int second = 0; second < 256; second++) {
            const std::string two{static_cast<char>(first), static_cast<char>(second)};
            check(two);
            if (first < 0xe0) continue;
            for (int third = 0x7f; third <= 0xc0; third++) {
                check(two + static_cast<char>(third));
                check(two + static_cast<char>(third) + '\x80');
                check(two + static_cast<char>(third) + '\xbf');
                check(two + '\x80' + static_cast<char>(third));
            }
        }
    }
    CHECK(valid_utf8_prefix(before) == before.size());
}

TEST_CASE("utf8: every code point, at every place of 64 bytes") {
    std::string text;
    for (std::uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xd800 && code < 0xe000) continue;
        append_utf8(code, text);
        if (code % 5 == 0) text += '.';
    }
    CHECK(valid_utf8_prefix(text) == text.size());
}

TEST_CASE("utf8: a text that ends, or is damaged, at any place") {
    std::mt19937 random(2);
    const std::string text = random_characters(random, 100);
    for (std::size_t cut = 0; cut < text.size(); cut++) {
        CHECK(valid_utf8_prefix(text.substr(0, cut)) == reference_prefix(text.substr(0, cut)));
        for (const char byte : {'\xff', '\x80', '\xc0', '\xe0', '\xf0', 'a'}) {
            std::string damaged = text;
            damaged[cut] = byte;
            CHECK(valid_utf8_prefix(damaged) == reference_prefix(damaged));
        }
    }
}
