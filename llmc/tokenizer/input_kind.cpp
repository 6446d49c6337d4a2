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

// Throws Error(bad_data) for bytes that have NULs, or the mark of a format without text.
void check_text(const std::string& name, std::string_view beginning) {
    static constexpr std::pair<std::string_view, const char*> marks[] = {
        {"\x1f\x8b", "compressed by gzip, without .gz in its name"},
        {"\x28\xb5\x2f\xfd", "compressed by zstd, without .zst in its name"},
        {"\xfd"
         "7zXZ",
         "compressed by xz"},
        {"BZh", "compressed by bzip2"},
        {"PK\3\4", "a zip archive"},
        {"%PDF-", "a PDF"},
        {"\x89PNG", "a picture"},
        {"\xff\xd8\xff", "a picture"},
        {"\x7f"
         "ELF",
         "a program"},
        {"PAR1", "Parquet, which data/parquet_to_jsonl.py reads"}};
    const char* what = beginning.find('\0') != beginning.npos ? "bytes that are 0" : nullptr;
    for (const auto& [mark, kind] : marks) what = beginning.starts_with(mark) ? kind : what;
    if (what == nullptr) return;
    throw Error(ErrorKind::bad_data, text(name, ": this is not text: ", what),
                "Leave the file out; `--format text` takes it as it is.");
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
