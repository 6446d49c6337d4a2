#include "llmc/tokenizer/input_kind.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/byte_stream.h"
#include "llmc/io/lfs_pointer.h"

namespace {

constexpr std::string_view white = " \t\r\n";

std::string_view behind(std::string_view text, std::string_view passed_over) {
    return text.substr(std::min(text.find_first_not_of(passed_over), text.size()));
}

bool takes(std::string_view& text, char c) {
    if (!text.starts_with(c)) return false;
    text.remove_prefix(1);
    return true;
}

// Returns true for the beginning of a list of objects, and for an empty list.
bool begins_as_list(std::string_view text) {
    text = behind(text, white);
    if (!takes(text, '[')) return false;
    text = behind(text, white);
    return text.starts_with('{') || (takes(text, ']') && behind(text, white).empty());
}

bool begins_as_json(std::string_view text) {
    const bool list = begins_as_list(text);
    text = behind(text, white);
    if (list) text = behind(text.substr(1), white);
    if (text.starts_with(']')) return list;
    return takes(text, '{') && behind(text, list ? white : " \t").starts_with('"');
}

bool is_json(const std::string& name, std::string_view beginning) {
    const std::string plain = uncompressed_name(name);
    auto ends_with = [&](std::string_view suffix) { return has_suffix(plain, suffix); };
    if (std::ranges::any_of(std::to_array<std::string_view>({".jsonl", ".ndjson", ".jl", ".jsonlines"}), ends_with)) {
        return true;
    }
    const bool may_be = ends_with(".json") || ends_with(".txt") || !std::filesystem::path(plain).has_extension();
    return may_be && begins_as_json(beginning);
}

// Returns true if units of so many bytes, one for each character or half a surrogate pair, are characters of a text.
bool are_characters(std::string_view bytes, std::size_t width, bool big_end_first) {
    bool high = false;   // the first half of a pair came last
    for (; bytes.size() >= width; bytes.remove_prefix(width)) {
        std::uint32_t code = 0;
        for (std::size_t i = 0; i < width; i++) {
            code = code << 8 | static_cast<unsigned char>(bytes[big_end_first ? i : width - 1 - i]);
        }
        const bool low = code >= 0xdc00 && code < 0xe000, is_white = code == '\t' || code == '\n' || code == '\r';
        if (low != high || (code < ' ' && !is_white) || (code >= 0xfffe && code < 0x10000) || code > 0x10ffff)
            return false;
        high = code >= 0xd800 && code < 0xdc00;
    }
    return true;
}

// Returns the name by which iconv knows the encoding of a text with bytes that are 0, without a mark of its order;
// empty: it is none.
std::string encoding_with_zeros(std::string_view beginning) {
    if (beginning.size() < 4) return "";
    for (const bool big : {false, true}) {
        if (are_characters(beginning, 4, big)) return big ? "UTF-32BE" : "UTF-32LE";
    }
    const auto zeros_from = [&](std::size_t first) {
        std::size_t count = 0;
        for (std::size_t i = first; i < beginning.size(); i += 2) count += beginning[i] == '\0' ? 1 : 0;
        return count;
    };
    const bool big = zeros_from(0) > zeros_from(1);   // ASCII has zeros in front
    if (!are_characters(beginning, 2, big)) return "";
    return big ? "UTF-16BE" : "UTF-16LE";
}

// Throws Error(bad_data) for bytes that have NULs, or the mark of a format without text.
void check_text(const std::string& name, std::string_view beginning) {
    struct Mark {
        std::string_view bytes;
        const char *kind, *relief = "Leave the file out";
    };
    static constexpr Mark marks[] = {
        {"\x1e", "a sequence of JSON texts (RFC 7464)", "Give `tr -d '\\036' <FILE | jq -c . | tokenize -`"},
        {"\x1f\x8b", "compressed twice, inside by gzip", "Decompress it once"},
        {"\x28\xb5\x2f\xfd", "compressed twice, inside by zstd", "Decompress it once"},
        {"\x04\x22\x4d\x18", "compressed by lz4", "Give `lz4 -dc FILE | tokenize -`"},
        {"\x02\x21\x4c\x18", "compressed by lz4", "Give `lz4 -dc FILE | tokenize -`"},   // its older form
        {"\x1f\x9d", "compressed by compress", "Give `gzip -dc FILE | tokenize -`"},
        {"LZIP\1", "compressed by lzip", "Give `lzip -dc FILE | tokenize -`"},
        {"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", "Unpack it"},
        {std::string_view("\x5d\0\0", 3), "compressed by lzma", "Give `xz -dc FILE | tokenize -`"},
        {"\xff\xfe", "UTF-16, as PowerShell writes it", "Give `iconv -f UTF-16 -t UTF-8 FILE | tokenize -`"},
        {"\xfe\xff", "UTF-16", "Give `iconv -f UTF-16 -t UTF-8 FILE | tokenize -`"},
        {std::string_view("\xff\xfe\0\0", 4), "UTF-32", "Give `iconv -f UTF-32 -t UTF-8 FILE | tokenize -`"},
        {"\xfd"
         "7zXZ",
         "compressed by xz", "Give `xz -dc FILE | tokenize -`"},
        {"BZh", "compressed by bzip2", "Give `bzip2 -dc FILE | tokenize -`"},
        {"PK\3\4", "a zip archive", "Unpack it"},
        {"%PDF-", "a PDF"},
        {"\x89PNG", "a picture"},
        {"\xff\xd8\xff", "a picture"},
        {"\x7f"
         "ELF",
         "a program"},
        {"PAR1", "Parquet, which data/parquet_to_jsonl.py reads"}};
    const char* what = beginning.find('\0') != beginning.npos ? "bytes that are 0" : nullptr;
    std::string_view relief = "Leave the file out";
    std::string command;
    if (const std::string encoding = what == nullptr ? "" : encoding_with_zeros(beginning); !encoding.empty()) {
        what = "UTF-16 or UTF-32, without a mark of its byte order";
        relief = command = text("Give `iconv -f ", encoding, " -t UTF-8 FILE | tokenize -`");
    }
    if (beginning.size() > 262 && beginning.substr(257, 5) == "ustar") what = "a tar archive", relief = "Unpack it";
    for (const Mark& mark : marks) {
        if (beginning.starts_with(mark.bytes)) what = mark.kind, relief = mark.relief;
    }
    if (what == nullptr) return;
    throw Error(ErrorKind::bad_data, text(name, ": this is not text: ", what),
                text(relief, "; `--format text` takes it as it is."));
}

}   // namespace

InputKind kind_of_input(const std::string& name, std::string_view beginning, InputFormat format) {
    beginning = beginning.substr(0, kind_bytes);
    if (format == InputFormat::text) return InputKind::text;
    refuse_lfs_pointer(name, beginning);
    if (format == InputFormat::automatic) check_text(name, beginning);
    if (beginning.starts_with(byte_order_mark)) beginning.remove_prefix(byte_order_mark.size());
    if (format == InputFormat::automatic && !is_json(name, beginning)) return InputKind::text;
    return begins_as_list(beginning) ? InputKind::json_list : InputKind::json_lines;
}
