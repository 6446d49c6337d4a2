#include "llmc/tokenizer/jsonl.h"

#include <cstdint>

#include "llmc/tokenizer/unicode.h"

namespace {

constexpr int max_depth = 256;

// A cursor over the line. Every skip_ function returns false with the error set when the line is not JSON there.
class Scanner {
public:
    explicit Scanner(std::string_view line) : line_(line) {}

    JsonField find(std::string_view name, std::string& value) {
        JsonField field;
        scan(name, value, field.found);
        field.error = error_;
        field.error_at = at_;
        return field;
    }

private:
    bool fail(const char* what) {
        error_ = what;
        return false;
    }

    void scan(std::string_view name, std::string& value, bool& found) {
        std::string key;
        skip_space();
        if (!take('{')) {
            fail("expected an object");
            return;
        }
        skip_space();
        if (!take('}')) {
            do {
                skip_space();
                key.clear();
                if (!string(&key)) return;
                skip_space();
                if (!take(':')) {
                    fail("expected ':'");
                    return;
                }
                skip_space();
                bool named = key == name, wanted = named && at_ < line_.size() && line_[at_] == '"';
                if (wanted) value.clear();
                if (named) found = wanted;
                if (wanted ? !string(&value) : !skip_value(0)) return;
                skip_space();
            } while (take(','));
            if (!take('}')) {
                fail("expected ',' or '}'");
                return;
            }
        }
        skip_space();
        if (at_ < line_.size()) fail("more behind the object");
    }

    bool take(char c) {
        if (at_ >= line_.size() || line_[at_] != c) return false;
        at_++;
        return true;
    }

    void skip_space() {
        while (at_ < line_.size() &&
               (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n')) {
            at_++;
        }
    }

    // A string, appended to `out` when that is not null.
    bool string(std::string* out) {
        if (!take('"')) return fail("expected a string");
        while (true) {
            std::size_t begin = at_;
            while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
                   static_cast<unsigned char>(line_[at_]) >= 0x20) {
                at_++;
            }
            if (out != nullptr) out->append(line_, begin, at_ - begin);
            if (at_ >= line_.size()) return fail("the line ends inside a string");
            if (take('"')) return true;
            if (!take('\\')) return fail("a control character inside a string");
            if (!escape(out)) return false;
        }
    }

    bool escape(std::string* out) {
        if (at_ >= line_.size()) return fail("the line ends inside a string");
        char c = line_[at_++];
        std::uint32_t code = 0;
        switch (c) {
            case '"':
            case '\\':
            case '/': code = static_cast<unsigned char>(c); break;
            case 'b': code = '\b'; break;
            case 'f': code = '\f'; break;
            case 'n': code = '\n'; break;
            case 'r': code = '\r'; break;
            case 't': code = '\t'; break;
            case 'u':
                if (!unicode(code)) return false;
                break;
            default: at_--; return fail("an unknown escape");
        }
        if (out != nullptr) append_utf8(code, *out);
        return true;
    }

    bool unicode(std::uint32_t& code) {
        if (!four_digits(code)) return false;
        bool high = code >= 0xd800 && code < 0xdc00, low = code >= 0xdc00 && code < 0xe000;
        if (high && line_.substr(at_, 2) == "\\u") {
            std::size_t back = at_;
            at_ += 2;
            std::uint32_t second = 0;
            if (!four_digits(second)) return false;
            if (second >= 0xdc00 && second < 0xe000) {
                code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
                return true;
            }
            at_ = back;   // not a pair: the second one stands for itself
        }
        if (high || low) code = 0xfffd;
        return true;
    }

    bool four_digits(std::uint32_t& code) {
        code = 0;
        for (int i = 0; i < 4; i++) {
            char c = at_ < line_.size() ? line_[at_] : '\0';
            std::uint32_t digit = 0;
            if (c >= '0' && c <= '9') {
                digit = static_cast<std::uint32_t>(c - '0');
            } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
                digit = static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
            } else {
                return fail("expected four hexadecimal digits");
            }
            code = code << 4 | digit;
            at_++;
        }
        return true;
    }

    bool skip_value(int depth) {
        if (at_ >= line_.size()) return fail("the line ends where a value should be");
        if (depth > max_depth) return fail("nested too deeply");
        char c = line_[at_];
        if (c == '"') return string(nullptr);
        if (c == '{' || c == '[') return skip_container(c == '{', depth);
        for (std::string_view word : {"true", "false", "null"}) {
            if (line_.substr(at_, word.size()) == word) {
                at_ += word.size();
                return true;
            }
        }
        return skip_number();
    }

    bool skip_container(bool object, int depth) {
        char close = object ? '}' : ']';
        at_++;
        skip_space();
        if (take(close)) return true;
        do {
            skip_space();
            if (object) {
                if (!string(nullptr)) return false;
                skip_space();
                if (!take(':')) return fail("expected ':'");
                skip_space();
            }
            if (!skip_value(depth + 1)) return false;
            skip_space();
        } while (take(','));
        return take(close) || fail("expected ',' or the end of a list or object");
    }

    bool digits() {
        std::size_t begin = at_;
        while (at_ < line_.size() && line_[at_] >= '0' && line_[at_] <= '9') at_++;
        return at_ > begin || fail("expected a value");
    }

    bool skip_number() {
        take('-');
        if (!take('0') && !digits()) return false;
        if (take('.') && !digits()) return false;
        if (take('e') || take('E')) {
            if (!take('+')) take('-');
            return digits();
        }
        return true;
    }

    std::string_view line_;
    std::size_t at_ = 0;
    const char* error_ = nullptr;
};

}   // namespace

JsonField find_json_string(std::string_view line, std::string_view name, std::string& value) {
    return Scanner(line).find(name, value);
}
