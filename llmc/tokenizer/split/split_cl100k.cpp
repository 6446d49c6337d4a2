// The pieces of cl100k (GPT-3.5, GPT-4), Llama-3 and Qwen, one character at a time.
//
//   cl100k   '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//            |\s+\z|\s*[\r\n]|\s+(?!\S)|\s
//   Llama-3  the same without \s+\z
//   Qwen     Llama-3's with \p{N} alone
//
// Not PCRE2: that is several times slower, and knows the Unicode of its own version (10.42 classes 9,393 code points
// otherwise than tiktoken, so ids would differ).

#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/split.h"
#include "llmc/tokenizer/split/split_rules.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

constexpr std::uint32_t long_s = 0x17f;   // matched by (?i:s), besides s and S

class Cl100kSplitter : public PieceSplitter {
public:
    Cl100kSplitter(int digits, bool whole_end) : digits_(digits), whole_end_(whole_end) {}

    void begin(std::string_view text) override {
        text_ = text;
        at_ = 0;
    }

    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::size_t count = 0;
        while (count < capacity && at_ < text_.size()) {
            at_ = piece_end(at_);
            ends[count++] = static_cast<std::uint32_t>(at_);
        }
        return count;
    }

private:
    struct Char {
        CharClass char_class = CharClass::space;
        std::uint32_t code = 0;
        std::uint32_t length = 0;   // 0: the end of the text
        bool newline() const { return code == '\n' || code == '\r'; }
    };

    Char char_at(std::size_t at) const {
        if (at >= text_.size()) return {};
        Utf8Char c = decode_utf8(text_.data() + at);
        return {table_[c.code], c.code, c.length};
    }

    std::size_t skip(std::size_t at, CharClass char_class) const {
        for (Char c = char_at(at); c.length > 0 && c.char_class == char_class; c = char_at(at)) at += c.length;
        return at;
    }

    std::size_t piece_end(std::size_t begin) const {
        Char first = char_at(begin);
        std::size_t second_at = begin + first.length;
        if (first.char_class == CharClass::letter) return skip(second_at, CharClass::letter);
        if (first.char_class == CharClass::number) return number_end(second_at);
        if (first.code == '\'') {
            if (std::size_t length = contraction(second_at)) return second_at + length;
        }
        Char second = char_at(second_at);
        if (second.length > 0 && second.char_class == CharClass::letter && !first.newline()) {
            return skip(second_at, CharClass::letter);
        }
        if (first.char_class == CharClass::other) return other_end(second_at);
        if (first.code == ' ' && second.length > 0 && second.char_class == CharClass::other)
            return other_end(second_at);
        return space_end(begin);
    }

    std::size_t number_end(std::size_t at) const {
        for (int digits = 1; digits < digits_; digits++) {
            Char c = char_at(at);
            if (c.length == 0 || c.char_class != CharClass::number) break;
            at += c.length;
        }
        return at;
    }

    std::size_t other_end(std::size_t at) const {
        at = skip(at, CharClass::other);
        while (at < text_.size() && (text_[at] == '\r' || text_[at] == '\n')) at++;
        return at;
    }

    // Returns where white space ends: behind its last newline if it has one, else before its last character if
    // something else follows.
    std::size_t space_end(std::size_t begin) const {
        std::size_t at = begin, last_char = begin, behind_newline = 0;
        for (Char c = char_at(at); c.length > 0 && c.char_class == CharClass::space; c = char_at(at)) {
            last_char = at;
            at += c.length;
            if (c.newline()) behind_newline = at;
        }
        bool at_end = at == text_.size();
        if (at_end && whole_end_) return at;
        if (behind_newline > 0) return behind_newline;
        return at_end || last_char == begin ? at : last_char;
    }

    // Returns the length of what follows an apostrophe at `at`, in any case: s d m t ll ve re; or 0.
    std::size_t contraction(std::size_t at) const {
        Char first = char_at(at);
        if (first.code == long_s) return first.length;
        std::uint32_t lower = first.code | 0x20;
        if (first.length != 1) return 0;
        if (lower == 's' || lower == 'd' || lower == 'm' || lower == 't') return 1;
        if (at + 1 >= text_.size()) return 0;
        std::uint32_t next = static_cast<unsigned char>(text_[at + 1]) | 0x20u;
        bool two = (lower == 'l' && next == 'l') || ((lower == 'v' || lower == 'r') && next == 'e');
        return two ? 2 : 0;
    }

    const CharTable& table_ = CharTable::get();
    int digits_;
    bool whole_end_;
    std::string_view text_;
    std::size_t at_ = 0;
};

}   // namespace

std::unique_ptr<PieceSplitter> make_cl100k_splitter(int digits, bool whole_end) {
    return std::make_unique<Cl100kSplitter>(digits, whole_end);
}
