// The known rules one character at a time, as their expressions say: the reference of split_blocks.cpp.
#pragma once

#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/split.h"
#include "llmc/tokenizer/split/unicode.h"

class ReferenceSplitter : public PieceSplitter {
public:
    explicit ReferenceSplitter(SplitRule rule) : rule_(rule) {}

    std::string_view begin(std::string_view text, bool) override {
        text_ = text;
        at_ = 0;
        return text;
    }
    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::size_t count = 0;
        while (count < capacity && at_ < text_.size()) {
            at_ = rule_ == SplitRule::gpt2 ? gpt2_end(at_) : cl100k_end(at_);
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
        bool is(CharClass wanted) const { return length > 0 && char_class == wanted; }
    };
    Char char_at(std::size_t at) const {
        if (at >= text_.size()) return {};
        const Utf8Char c = decode_utf8(text_.data() + at);
        return {CharTable::get()[c.code], c.code, c.length};
    }
    std::size_t skip(std::size_t at, CharClass char_class) const {
        for (Char c = char_at(at); c.is(char_class); c = char_at(at)) at += c.length;
        return at;
    }

    std::size_t gpt2_end(std::size_t begin) const {
        const Char first = char_at(begin);
        if (first.code == '\'') {
            if (const std::size_t length = contraction(begin + 1, false)) return begin + 1 + length;
        }
        const std::size_t at = first.code == ' ' ? begin + 1 : begin;
        const Char behind = char_at(at);
        if (behind.length > 0 && behind.char_class != CharClass::space) return skip(at, behind.char_class);
        const std::size_t end = skip(begin, CharClass::space);
        if (end == text_.size()) return end;
        std::size_t last = begin;   // of the white space
        for (std::size_t next = begin; next < end; next += char_at(next).length) last = next;
        return last > begin ? last : end;
    }

    std::size_t cl100k_end(std::size_t begin) const {
        const Char first = char_at(begin);
        const std::size_t second_at = begin + first.length;
        if (first.code == '\'') {
            if (const std::size_t length = contraction(second_at, true)) return second_at + length;
        }
        if (first.char_class == CharClass::letter) return skip(begin, CharClass::letter);
        const Char second = char_at(second_at);
        if (!first.newline() && first.char_class != CharClass::number && second.is(CharClass::letter)) {
            return skip(second_at, CharClass::letter);
        }
        if (first.char_class == CharClass::number) {
            std::size_t end = second_at;
            for (int more = rule_ == SplitRule::qwen ? 0 : 2; more > 0 && char_at(end).is(CharClass::number); more--) {
                end += char_at(end).length;
            }
            return end;
        }
        if (first.char_class == CharClass::other || (first.code == ' ' && second.is(CharClass::other))) {
            std::size_t end = skip(second_at, CharClass::other);
            while (char_at(end).newline()) end++;
            return end;
        }
        std::size_t end = begin, last = begin, behind_newline = 0;
        for (Char c = first; c.is(CharClass::space); c = char_at(end)) {
            last = end;
            end += c.length;
            if (c.newline()) behind_newline = end;
        }
        const bool at_end = end == text_.size();
        if (at_end && rule_ == SplitRule::cl100k) return end;
        if (behind_newline > 0) return behind_newline;
        return at_end || last == begin ? end : last;
    }

    std::size_t contraction(std::size_t at, bool any_case) const {
        const Char first = char_at(at), second = char_at(at + first.length);
        if (any_case && first.code == 0x17f) return first.length;   // a long s
        const auto lower = [&](const Char& c) { return any_case && c.code < 0x80 ? c.code | 0x20 : c.code; };
        const std::uint32_t a = lower(first), b = lower(second);
        if (first.length == 0) return 0;
        if (a == 's' || a == 'd' || a == 'm' || a == 't') return 1;
        return second.length > 0 && ((a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e')) ? 2 : 0;
    }

    SplitRule rule_;
    std::string_view text_;
    std::size_t at_ = 0;
};
