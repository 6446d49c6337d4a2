// For tests: files damaged in every way that disks, copies and hostile hands know.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace damage {

namespace fs = std::filesystem;

enum Damage {
    header_byte,
    payload_bit,
    truncation,
    extension,
    edits,
    numbers,
    exchange,
    link_to,
    no_file,
    damage_kinds
};
constexpr const char* damage_names[] = {"header byte", "payload bit", "truncation", "extension", "edits",
                                        "numbers",     "exchange",    "link",       "no file"};

using Random = std::mt19937;

template <class T, std::size_t n>
const T& one_of(const T (&choices)[n], Random& random) {
    return choices[random() % n];
}

inline void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
}

// An int32 of a header, or a number of a text, at the edge of its range or beyond; in a text also deep nesting and keys
// that are there twice.
inline void damage_number(std::string& bytes, bool is_text, Random& random) {
    if (!is_text) {
        const std::int32_t value = one_of({-1, 0, 1, 2, INT32_MIN, INT32_MAX, 65535, 65536, 1 << 30}, random);
        const std::size_t at = 4 * (random() % 8);
        if (at + 4 <= bytes.size()) std::memcpy(bytes.data() + at, &value, 4);
        return;
    }
    static const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    const std::string value =
        one_of<std::string>({"-1", "1e999", "9223372036854775808", "18446744073709551616", "4294967297", "1.5", "true",
                             "null", "\"\"", "{}", "-9223372036854775809", "0", deep, deep.substr(0, 100'000)},
                            random);
    const std::size_t from = bytes.find_first_of("0123456789", random() % (bytes.size() + 1));
    if (from == std::string::npos) return;
    const std::size_t key = bytes.find('"', from), colon = bytes.find(':', from);
    if (random() % 4 == 0 && key < colon && colon != std::string::npos) {
        bytes.insert(key, bytes.substr(key, colon - key) + ": " + value + ", ");
        return;
    }
    const std::size_t to = std::min(bytes.find_first_not_of("0123456789", from), bytes.size());
    bytes.replace(from, to - from, value);
}

inline void damage_bytes(Damage damage, std::string& bytes, bool is_text, Random& random) {
    auto place = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
    switch (damage) {
        case header_byte:
            bytes[random() % std::min<std::size_t>(bytes.size(), 200)] = static_cast<char>(random());
            break;
        case payload_bit: {
            const std::size_t from =
                bytes.size() > 1024 && random() % 2 ? 1024 : 0;   // behind a header, if there is one
            bytes[from + random() % (bytes.size() - from)] ^= static_cast<char>(1 << random() % 8);
            break;
        }
        case truncation: bytes.resize(random() % 2 ? place() : bytes.size() - 1 - random() % 8); break;
        case extension:
            bytes += random() % 2 ? std::string(1 + random() % 9, " 0\n\xff}]\0,"[random() % 8]) : bytes;
            break;
        case edits:
            for (unsigned changes = 1 + random() % 4; changes > 0; changes--) {
                if (random() % 2) bytes.erase(place(), 1 + random() % 8);
                if (random() % 2) bytes.insert(place(), bytes.substr(place(), random() % 40));
                if (random() % 2) bytes.insert(place(), 1, "\"{}[],:0-9 \n\\\xff"[random() % 15]);
            }
            break;
        default: damage_number(bytes, is_text, random); break;
    }
}

// The header alone, its length set right again: what is wrong with it is not only that it ends elsewhere.
inline void damage_header(Damage damage, std::string& bytes, Random& random) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::string header = bytes.substr(8, length);
    damage_bytes(damage, header, true, random);
    length = header.size();
    bytes = std::string(reinterpret_cast<const char*>(&length), 8) + header + bytes.substr(bytes.size() - 10);
}

// Puts something else in the place of a file: another file, a link, or what is no file. Every kind of link and of what
// is no file, in turn.
inline void damage_place(Damage damage, const std::string& folder, const std::string& file,
                         const std::vector<const std::string*>& others, unsigned number, Random& random) {
    const std::string path = folder + "/" + file;
    if (damage == exchange) {
        write_file(path, *others[random() % others.size()]);
        return;
    }
    const std::string aside = folder + "/aside";
    fs::rename(path, aside);
    if (damage == link_to) {
        const std::string target = std::vector<std::string>{"aside", "nothing", file, "/dev/zero", "."}[number % 5];
        fs::create_symlink(target, path);
        return;
    }
    fs::remove(aside);
    if (number % 3 == 0) fs::create_directory(path);
    if (number % 3 == 1) REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    if (number % 3 == 2) {   // a file of a terabyte, with no more on the disk than a page
        write_file(path, "{");
        fs::resize_file(path, std::uintmax_t{1} << 40);
    }
}

}   // namespace damage
