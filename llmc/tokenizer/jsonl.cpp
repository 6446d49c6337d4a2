#include "llmc/tokenizer/jsonl.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

namespace {

constexpr int max_depth = 256;

// Scans the line with a cursor. Functions throw what is wrong, as a literal, with the cursor where it is wrong.
class Scanner {
public:
    explicit Scanner(std::string_view line) : line_(line) {}

    JsonField find(std::string_view name, std::string& value) {
        JsonField field;
        try {
            scan(name, value, field);
        } catch (const char* what) {
            field.error = what;
        }
        field.error_at = at_;
        return field;
    }

private:
    void scan(std::string_view name, std::string& value, JsonField& field) {
        if (line_.starts_with(byte_order_mark)) at_ = byte_order_mark.size();
        skip_space();
        if (here() != '{') throw "expected an object";
        std::string member;
        entries('}', [&] {
            member.clear();
            key(&member);
            const bool named = member == name, wanted = named && here() == '"';
            if (named) field.found = wanted;
            if (named) field.other = wanted ? nullptr : kind_here();
            if (wanted) {
                value.clear();
                string(&value);
            } else {
                skip_value(0);
            }
        });
        skip_space();
        if (at_ < line_.size()) throw "more behind the object";
    }

    char here() const { return at_ < line_.size() ? line_[at_] : '\0'; }

    // Returns the kind of the value at the cursor, by its first byte.
    const char* kind_here() const {
        switch (here()) {
            case '{': return "an object";
            case '[': return "a list";
            case 'n': return "null";
            case 't': return "true";
            case 'f': return "false";
            default: return "a number";
        }
    }

    bool take(char c) {
        if (at_ >= line_.size() || line_[at_] != c) return false;
        at_++;
        return true;
    }

    void skip_space() { at_ = std::min(line_.find_first_not_of(" \t\r\n", at_), line_.size()); }

    // Passes over the members of an object or the elements of a list, with both brackets; calls entry() at each.
    template <class Entry>
    void entries(char close, Entry entry) {
        at_++;
        skip_space();
        if (take(close)) return;
        do {
            skip_space();
            entry();
            skip_space();
        } while (take(','));
        if (!take(close)) throw close == '}' ? "expected ',' or '}'" : "expected ',' or ']'";
    }

    void key(std::string* out) {
        string(out);
        skip_space();
        if (!take(':')) throw "expected ':'";
        skip_space();
    }

    // Reads a string, and appends it to `out` when that is not null.
    void string(std::string* out) {
        if (!take('"')) throw "expected a string";
        while (true) {
            const std::size_t begin = at_;
            while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
                   static_cast<unsigned char>(line_[at_]) >= 0x20) {
                at_++;
            }
            if (out != nullptr) out->append(line_, begin, at_ - begin);
            if (at_ >= line_.size()) throw "the line ends inside a string";
            if (take('"')) return;
            if (!take('\\')) throw "a control character inside a string";
            const std::uint32_t code = escape();
            if (out != nullptr) append_utf8(code, *out);
        }
    }

    std::uint32_t escape() {
        constexpr std::string_view letters = "\"\\/bfnrt", codes = "\"\\/\b\f\n\r\t";
        if (at_ >= line_.size()) throw "the line ends inside a string";
        if (take('u')) return unicode();
        const std::size_t which = letters.find(line_[at_]);
        if (which == letters.npos) throw "an unknown escape";
        at_++;
        return static_cast<unsigned char>(codes[which]);
    }

    std::uint32_t unicode() {
        auto is_high = [](std::uint32_t code) { return code >= 0xd800 && code < 0xdc00; };
        auto is_low = [](std::uint32_t code) { return code >= 0xdc00 && code < 0xe000; };
        const std::uint32_t code = four_digits();
        if (is_high(code) && line_.substr(at_, 2) == "\\u") {
            const std::size_t back = at_;
            at_ += 2;
            const std::uint32_t second = four_digits();
            if (is_low(second)) return 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
            at_ = back;   // not a pair: the second one stands for itself
        }
        return is_high(code) || is_low(code) ? 0xfffd : code;
    }

    std::uint32_t four_digits() {
        std::uint32_t code = 0;
        const char* begin = line_.data() + at_;
        const char* end = std::from_chars(begin, begin + std::min<std::size_t>(4, line_.size() - at_), code, 16).ptr;
        at_ += static_cast<std::size_t>(end - begin);
        if (end != begin + 4) throw "expected four hexadecimal digits";
        return code;
    }

    void skip_value(int depth) {
        if (at_ >= line_.size()) throw "the line ends where a value should be";
        if (depth > max_depth) throw "nested too deeply";
        if (here() == '"') return string(nullptr);
        if (here() == '[') return entries(']', [&] { skip_value(depth + 1); });
        if (here() == '{') {
            return entries('}', [&] {
                key(nullptr);
                skip_value(depth + 1);
            });
        }
        for (std::string_view word : {"true", "false", "null"}) {
            if (!line_.substr(at_).starts_with(word)) continue;
            at_ += word.size();
            return;
        }
        for (std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
            if (line_.substr(at_).starts_with(word))
                throw word.front() == 'N' ? "NaN is no value of JSON" : "Infinity is no value of JSON";
        }
        skip_number();
    }

    void skip_digits() {
        const std::size_t begin = at_;
        at_ = std::min(line_.find_first_not_of("0123456789", at_), line_.size());
        if (at_ == begin) throw "expected a value";
    }

    void skip_number() {
        take('-');
        if (!take('0')) skip_digits();
        if (take('.')) skip_digits();
        if (take('e') || take('E')) {
            if (!take('+')) take('-');
            skip_digits();
        }
    }

    std::string_view line_;
    std::size_t at_ = 0;
};

}   // namespace

JsonField find_json_string(std::string_view line, std::string_view name, std::string& value) {
    return Scanner(line).find(name, value);
}

std::size_t ObjectEnd::find(std::string_view text) {
    while (at_ < text.size()) {
        const char c = text[at_];
        if (in_string_ && c == '\\' && at_ + 1 == text.size()) break;   // the escaped character is still to come
        at_ += in_string_ && c == '\\' ? 2 : 1;
        if (c == '"') in_string_ = !in_string_;
        if (in_string_) continue;
        if (c == '{' || c == '[') depth_++;
        if ((c == '}' || c == ']') && --depth_ == 0) return at_;
    }
    return std::string_view::npos;
}

void SkippedLines::add(const SkippedLines& later) {
    if (count == 0) first = later.first;
    count += later.count;
}

std::optional<std::string_view> json_text(std::string_view line, const std::string& name, std::string& value,
                                          const JsonLocation& place, SkippedLines* skipped) {
    const JsonField field = find_json_string(line, name, value);
    if (field.found && field.error == nullptr) return value;
    const std::size_t at = field.error == nullptr ? 0 : field.error_at;
    const std::uint64_t number = place.line + static_cast<std::uint64_t>(std::ranges::count(line.substr(0, at), '\n'));
    const std::string what =
        text(place.file, ": line ", number, ", offset ", place.offset + at, ": ",
             field.error != nullptr   ? text("this line is not JSON: ", field.error)
             : field.other == nullptr ? text("this line has no string field \"", name, "\"")
                                      : text("the field \"", name, "\" is ", field.other, ", expected a string"));
    if (skipped != nullptr) {
        skipped->add({1, what});
        return std::nullopt;
    }
    const char* hint = field.error != nullptr   ? "JSONL has one JSON object per line; "
                       : field.other == nullptr ? "Name the field that holds the text with --field; "
                                                : "Name another field with --field; ";
    throw Error(ErrorKind::bad_data, what,
                text(hint, "--skip-bad-lines passes over such lines, --format text takes the file as text."));
}
