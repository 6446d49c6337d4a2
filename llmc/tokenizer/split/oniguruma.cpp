#include "llmc/tokenizer/split/oniguruma.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/code_set.h"

namespace {

constexpr unsigned max_repeat = 65535;   // PCRE2's
constexpr unsigned max_depth = 200;

const CodeSet everything = {{0, max_code}}, newline = {{'\n', '\n'}};

CodeSet one(std::uint32_t code) { return {{code, code}}; }

CodeSet property(const char* name) { return *unicode_property(name); }

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// `\w` outside of brackets: Oniguruma has a table of its own below U+0100.
CodeSet word() { return unite(property("Word"), {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}); }

// Reads a pattern once, from left to right, and writes the translated one as text between numbers of sets.
class Translator {
public:
    explicit Translator(const std::string& pattern) {
        if (valid_utf8_prefix(pattern) != pattern.size()) refuse(0, "bytes that are not UTF-8");
        for (std::size_t i = 0; i < pattern.size();) {
            const Utf8Char c = decode_utf8(pattern.data() + i);
            in_ += static_cast<char32_t>(c.code);
            i += c.length;
        }
    }

    TranslatedPattern translate() {
        alternatives();
        if (!at_end()) refuse(at_, "a ')' without its '('");
        return print();
    }

private:
    struct Part {
        std::string text;
        std::size_t set = no_set;
    };
    static constexpr std::size_t no_set = ~std::size_t{0};

    [[noreturn]] static void refuse(std::size_t place, const std::string& what) {
        throw Error(ErrorKind::bad_data, text("the pattern has ", what, " at its character ", place));
    }
    [[noreturn]] void no_translation(std::size_t begin) const {
        std::string construct;
        for (std::size_t i = begin; i < std::min(at_, begin + 20); i++) append_utf8(in_[i], construct);
        refuse(begin, text("'", construct, "', which is not supported,"));
    }

    bool at_end() const { return at_ == in_.size(); }
    char32_t peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : char32_t{0}; }
    bool accept(std::u32string_view expected) {
        if (std::u32string_view(in_).substr(at_, expected.size()) != expected) return false;
        at_ += expected.size();
        return true;
    }
    char32_t next() {
        if (at_end()) refuse(at_, "an end where more must follow");
        return in_[at_++];
    }

    void write(const std::string& piece) { parts_.push_back({piece}); }
    void write(const CodeSet& set) {
        sets_.push_back(set);
        parts_.push_back({"", sets_.size() - 1});
    }

    void alternatives() {
        if (++depth_ > max_depth) refuse(at_, "too many groups in groups");
        const bool caseless = caseless_, dot_all = dot_all_;
        std::size_t open = 0;
        while (!at_end() && peek() != ')') {
            if (accept(U"|")) {
                write("|");
                last_letter_ = 0;
            } else if (peek() == '(' && peek(1) == '?' && options_end(2) == ')') {
                at_ += 2;
                options();   // they hold for all that follows in the group, also behind a '|'
                at_++;
                write("(?:");
                open++;
            } else {
                const std::size_t begin = parts_.size();
                repeats(begin, atom());
            }
        }
        write(std::string(open, ')'));
        caseless_ = caseless, dot_all_ = dot_all;
        depth_--;
    }

    // Returns what follows the letters of options that begin `ahead` from here; 0 if there are none.
    char32_t options_end(std::size_t ahead) const {
        const std::size_t first = ahead;
        while (is_ascii_letter(peek(ahead)) || peek(ahead) == '-') ahead++;
        return ahead == first ? char32_t{0} : peek(ahead);
    }
    void options() {
        const std::size_t begin = at_ - 2;
        bool on = true;
        while (peek() != ')' && peek() != ':') {
            const char32_t option = next();
            if (option == '-') {
                on = false;
            } else if (option == 'i') {
                caseless_ = on;
            } else if (option == 'm') {
                dot_all_ = on;
            } else {
                no_translation(begin);
            }
        }
        last_letter_ = 0;
    }

    // Reads what can be repeated and returns true, or an anchor.
    bool atom() {
        const std::size_t begin = at_;
        const char32_t c = next();
        const char32_t before = std::exchange(last_letter_, 0);
        switch (c) {
            case '(': return group(begin);
            case '[': write(bracket()); return true;
            case '.': write(dot_all_ ? everything : complement(newline)); return true;
            case '\\': return escape(begin, before);
            case '*':
            case '+':
            case '?': refuse(begin, "a repeat of nothing");
            case '^':
                write("(?:\\A|(?<=");
                write(newline);
                write(")(?!\\z))");
                return false;
            case '$':
                write("(?=");
                write(newline);
                write("|\\z)");
                return false;
            default: break;
        }
        if (c == '{' && (at_--, interval())) refuse(begin, "a repeat of nothing");
        at_ = begin + 1;
        literal(c, begin, before);
        return true;
    }

    bool group(std::size_t begin) {
        static constexpr std::pair<std::u32string_view, const char*> kinds[] = {
            {U"?:", "(?:"}, {U"?>", "(?>"}, {U"?=", "(?="}, {U"?!", "(?!"}, {U"?<=", "(?<="}, {U"?<!", "(?<!"}};
        if (accept(U"?#")) {
            while (next() != ')') {
                if (in_[at_ - 1] == '\\') next();
            }
            return false;
        }
        const bool caseless = caseless_, dot_all = dot_all_;
        const auto kind = std::ranges::find_if(kinds, [&](const auto& each) { return accept(each.first); });
        if (kind != std::end(kinds)) {
            write(kind->second);
        } else if (peek() == '?' && options_end(1) == ':') {
            at_++;
            options();
            at_++;
            write("(?:");
        } else {
            if (peek() == '?' && peek(1) == '<' && is_ascii_letter(peek(2))) {   // nothing refers to its name
                while (next() != '>') {
                }
            } else if (peek() == '?' || peek() == '*') {
                at_ += std::min<std::size_t>(8, in_.size() - at_);
                no_translation(begin);
            }
            write("(?:");
        }
        alternatives();
        if (!accept(U")")) refuse(begin, "a '(' without its ')'");
        write(")");
        caseless_ = caseless, dot_all_ = dot_all;
        last_letter_ = 0;
        return kind == std::end(kinds) || kind - kinds < 2;
    }

    struct Repeat {
        unsigned least, most;
        bool fixed;
    };
    static constexpr unsigned unlimited = ~0u;

    // Reads {n}, {n,}, {,m} or {n,m}; returns false and stays where it is not one.
    bool interval() {
        const std::size_t begin = at_;
        if (!accept(U"{")) return false;
        const auto number = [&](unsigned none) {
            if (!is_digit(peek())) return none;
            unsigned value = 0;
            while (is_digit(peek())) {
                value = value * 10 + (next() - '0');
                if (value > max_repeat) refuse(begin, text("a repeat of more than ", max_repeat));
            }
            return value;
        };
        const bool has_least = is_digit(peek());
        repeat_ = {number(0), 0, false};
        repeat_.fixed = !accept(U",");
        const bool has_most = !repeat_.fixed && is_digit(peek());
        repeat_.most = repeat_.fixed ? repeat_.least : number(unlimited);
        if ((!has_least && !has_most) || !accept(U"}")) {
            at_ = begin;
            return false;
        }
        if (repeat_.least > repeat_.most) refuse(begin, "a repeat whose limits are exchanged");
        return true;
    }

    // Reads the repeats behind an atom; in Ruby's syntax any may be repeated again.
    void repeats(std::size_t begin, bool repeatable) {
        for (bool first = true;; first = false) {
            const std::size_t place = at_;
            const char32_t c = peek();
            const bool sign = c == '*' || c == '+' || c == '?';
            if (sign) {
                at_++;
                repeat_ = {c == '+', c == '?' ? 1 : unlimited, false};
            } else if (!interval()) {
                return;
            }
            if (!repeatable) refuse(place, "a repeat of an anchor or of a look around");
            last_letter_ = 0;
            if (!first) {
                parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(begin), {"(?:"});
                write(")");
            }
            const std::string most = repeat_.most == unlimited ? "" : text(repeat_.most);
            write(sign ? std::string(1, static_cast<char>(c)) : text("{", repeat_.least, ",", most, "}"));
            // `+` behind an interval is one more repeat, as `?` is behind {n}
            if (!repeat_.fixed && accept(U"?")) {
                write("?");
            } else if (sign && accept(U"+")) {
                write("+");
            }
        }
    }

    void literal(char32_t c, std::size_t place, char32_t before) {
        if (caseless_) {
            static const CodeSet marks = property("M");
            const bool joins = is_in(marks, c) || c == 0x2bc || c == 0x2be;   // part of what one letter equals
            if (joins) refuse(place, "a mark without regard to case, which is not supported,");
            if (is_ascii_letter(c)) last_letter_ = c | 0x20;
            static constexpr std::u32string_view ligatures[] = {U"ss", U"st", U"ff", U"fi", U"fl"};
            for (const std::u32string_view pair : ligatures) {   // as one letter does, such as U+00DF
                if (before == pair[0] && last_letter_ == pair[1]) {
                    refuse(place - 1, text("'", static_cast<char>(pair[0]), static_cast<char>(pair[1]),
                                           "' without regard to case, which is not supported,"));
                }
            }
        }
        write(without_case(one(c), place));
    }

    // Adds what is equal without regard to case, if that is asked for.
    CodeSet without_case(CodeSet set, std::size_t place) const {
        if (!caseless_ || set.empty()) return set;
        for (std::uint32_t c = 'a'; c <= 'z'; c++) {
            CodeSet equal = {{c - 32, c - 32}, {c, c}};
            if (c == 's') equal.push_back({0x17f, 0x17f});
            if (c == 'k') equal.push_back({0x212a, 0x212a});
            const auto in_set = [&](CodeRange each) { return is_in(set, each.first); };
            if (std::ranges::any_of(equal, in_set)) set = unite(set, equal);
        }
        if (set.back().last < 0x80) return set;
        static const CodeSet rest = intersect(cased_beyond_ascii(), complement({{0x17f, 0x17f}, {0x212a, 0x212a}}));
        const CodeSet part = intersect(set, rest);
        if (!part.empty() && part != rest) {
            refuse(place, "a letter beyond ASCII without regard to case, which is not supported,");
        }
        return set;
    }

    // Reads the rest of an escape outside of brackets.
    bool escape(std::size_t begin, char32_t before) {
        const char32_t c = peek();
        if (c == 'b' || c == 'B') {
            const char* const text_of[2][3] = {{"(?:(?<=", ")(?!", ")|(?<!"}, {"(?:(?<=", ")(?=", ")|(?<!"}};
            const auto& texts = text_of[c == 'B'];
            for (const char* piece : texts) {
                write(piece);
                write(word());
            }
            write(c == 'b' ? ")(?=" : ")(?!");
            write(word());
            write("))");
        } else if (c == 'A') {
            write("\\A");
        } else if (c == 'z') {
            write("\\z");
        } else if (c == 'Z') {
            write("(?=");
            write(newline);
            write("?\\z)");
        } else if (c == 'w' || c == 'W') {
            write(c == 'w' ? word() : complement(word()));
            at_++;
            return true;
        } else {
            CodeSet set;
            if (class_escape(begin, set)) {
                static const CodeSet bracketed =
                    property("Word");   // outside of brackets it depends on what is beside it
                if (set == bracketed || set == complement(bracketed)) no_translation(begin);
                write(without_case(set, begin));
            } else {
                literal(set[0].first, begin, before);
            }
            return true;
        }
        at_++;
        return false;
    }

    // Reads an escape that means the same in brackets; returns false if it is one character.
    bool class_escape(std::size_t begin, CodeSet& set) {
        const char32_t c = next();
        static const std::map<char32_t, const char*> properties = {
            {'d', "Digit"}, {'s', "Space"}, {'h', "XDigit"}, {'w', "Word"}};
        const bool negative = c >= 'A' && c <= 'Z';
        if (const auto found = properties.find(c | 0x20); is_ascii_letter(c) && found != properties.end()) {
            set = property(found->second);
            if (negative) set = complement(set);
            return true;
        }
        if ((c == 'p' || c == 'P') && accept(U"{")) {
            const bool turned = accept(U"^");
            std::string name;
            for (char32_t letter = next(); letter != '}'; letter = next()) append_utf8(letter, name);
            const auto found = unicode_property(name);
            if (!found) no_translation(begin);
            set = negative != turned ? complement(*found) : *found;
            return true;
        }
        static constexpr std::u32string_view letters = U"tnrfvae", codes = U"\t\n\r\f\v\a\x1b";
        if (const std::size_t at = letters.find(c); at != letters.npos) {
            set = one(codes[at]);
        } else if (c == 'x' || c == 'u') {
            set = one(hexadecimal(c, begin));
        } else if (c == '0' && !is_digit(peek())) {
            set = one(0);
        } else if (is_ascii_letter(c) || is_digit(c)) {
            no_translation(begin);
        } else {
            set = one(c);
        }
        return false;
    }

    // Reads the rest of \xHH, \x{H...} or \uHHHH.
    std::uint32_t hexadecimal(char32_t kind, std::size_t begin) {
        static constexpr std::u32string_view digits = U"0123456789abcdef";
        const bool braces = kind == 'x' && accept(U"{");
        const std::size_t most = braces ? 8 : kind == 'x' ? 2 : 4;
        std::uint32_t value = 0;
        std::size_t count = 0;
        for (; count < most; count++) {
            const std::size_t digit = digits.find(is_ascii_letter(peek()) ? peek() | 0x20 : peek());
            if (at_end() || digit == digits.npos) break;
            value = value * 16 + static_cast<std::uint32_t>(digit);
            at_++;
        }
        const bool whole = braces ? count > 0 && accept(U"}") : count == most;
        const bool byte = kind == 'x' && !braces && value >= 0x80;   // a part of a character
        if (!whole || byte || value > max_code || (value >= 0xd800 && value < 0xe000)) no_translation(begin);
        return value;
    }

    // Reads a class behind its '['.
    CodeSet bracket() {
        const std::size_t begin = at_ - 1;
        if (++depth_ > max_depth) refuse(at_, "too many classes in classes");
        const bool negative = accept(U"^");
        if (peek() == ']') refuse(begin, "a class that begins with ']', which is not supported,");
        CodeSet whole = everything, side;
        bool empty = true;
        while (true) {
            if (at_end()) refuse(begin, "a '[' without its ']'");
            const bool ends = accept(U"]");
            if (ends || accept(U"&&")) {
                if (empty) refuse(at_, "an empty side of '&&', which is not supported,");
                whole = intersect(whole, without_case(side, begin));
                side.clear();
                empty = true;
                if (ends) break;
                continue;
            }
            side = unite(side, member());
            empty = false;
        }
        depth_--;
        return negative ? complement(whole) : whole;
    }

    // Reads a character, a range or a set within a class.
    CodeSet member() {
        const std::size_t begin = at_;
        CodeSet set;
        bool is_set = class_item(set);
        if (peek() != '-' || peek(1) == ']') return set;
        if (is_set) {   // the '-' is itself
            at_++;
            if (peek() == '-' || (peek() == '&' && peek(1) == '&')) no_translation(begin);
            return unite(set, one('-'));
        }
        at_++;
        CodeSet last;
        if ((peek() == '&' && peek(1) == '&') || class_item(last)) no_translation(begin);
        if (last[0].first < set[0].first) refuse(begin, "a range whose ends are exchanged");
        set[0].last = last[0].first;
        if (peek() == '-' && peek(1) != ']') {   // behind a range, too
            at_++;
            if (peek() == '-' || (peek() == '&' && peek(1) == '&')) no_translation(begin);
            set = unite(set, one('-'));
        }
        return set;
    }

    // Reads one character and returns false, or a set.
    bool class_item(CodeSet& set) {
        const std::size_t begin = at_;
        const char32_t c = next();
        if (c == '\\') {
            if (accept(U"b")) return set = one('\b'), false;
            return class_escape(begin, set);
        }
        if (c != '[') return set = one(c), false;
        if (!accept(U":")) {
            const bool turned = peek() == '^';
            set = bracket();
            // Oniguruma then takes in everything beyond ASCII instead of nothing
            if (turned && (set.empty() || set.back().last < 0x80)) no_translation(begin);
            return true;
        }
        const bool negative = accept(U"^");
        std::string name;
        while (is_ascii_letter(peek())) name += static_cast<char>(next());
        static constexpr std::string_view names[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit",  "graph",
                                                     "lower", "print", "punct", "space", "upper", "xdigit", "word"};
        if (!accept(U":]") || std::ranges::find(names, name) == std::end(names)) no_translation(begin);
        set = *unicode_property(name);
        if (name == "punct") set = unite(set, property("S"));
        if (negative) set = complement(set);
        return true;
    }

    // Gives each kind of character a byte and prints sets as classes of these.
    TranslatedPattern print() const {
        CodeKinds kinds = kinds_of(sets_);
        if (kinds.by_sets.size() > 256) refuse(0, "more than 256 kinds of characters, which are not supported,");
        TranslatedPattern result;
        result.kinds = std::move(kinds.by_code);
        for (const Part& part : parts_) {
            result.regex += part.text;
            if (part.set == no_set) continue;
            std::string members;
            for (const auto& [sets, kind] : kinds.by_sets) {
                if (!sets[part.set]) continue;
                const char* const digits = "0123456789abcdef";
                members += {'\\', 'x', digits[kind >> 4], digits[kind & 15]};
            }
            result.regex += members.empty() ? "(?:(?!))" : members.size() == 4 ? members : "[" + members + "]";
        }
        return result;
    }

    std::u32string in_;
    std::size_t at_ = 0;
    unsigned depth_ = 0;
    bool caseless_ = false, dot_all_ = false;
    char32_t last_letter_ = 0;   // text without regard to case, if it ends here
    Repeat repeat_ = {};
    std::vector<Part> parts_;
    std::vector<CodeSet> sets_;
};

}   // namespace

TranslatedPattern translate_oniguruma(const std::string& pattern) { return Translator(pattern).translate(); }
