#include "llmc/tokenizer/split/split.h"

#include <cstring>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/split_rules.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

struct KnownPattern {
    SplitRule rule;
    const char* regex;
};

// The first spelling of each rule is the one we write into files. Others are those of published tokenizers. All are
// read as Oniguruma reads them: tiktoken's `\p{N}{1,3}+` is not cl100k there, but any number of digits.
constexpr KnownPattern known_patterns[] = {
    {SplitRule::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitRule::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"},
    {SplitRule::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitRule::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitRule::cl100k, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                        R"(|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitRule::llama3, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitRule::qwen, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

class WholeText : public PieceSplitter {
public:
    std::string_view begin(std::string_view text, bool) override {
        size_ = text.size();
        return text;
    }
    std::size_t next(std::uint32_t* ends, std::size_t) override {
        if (size_ == 0) return 0;
        ends[0] = static_cast<std::uint32_t>(size_);
        size_ = 0;
        return 1;
    }

private:
    std::size_t size_ = 0;
};

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Returns the class of the character that ends at `end`; text that is not UTF-8 counts as white space, so never as a
// cut.
CharClass class_before(std::string_view text, std::size_t end) {
    std::size_t begin = end;
    while (begin > 0 && end - begin < 4) {
        begin--;
        if ((static_cast<unsigned char>(text[begin]) & 0xc0) != 0x80) break;
    }
    std::string_view last = text.substr(begin, end - begin);
    if (last.empty() || valid_utf8_prefix(last) != last.size()) return CharClass::space;
    Utf8Char c = decode_utf8(last.data());
    return c.length == last.size() ? CharTable::get()[c.code] : CharClass::space;
}

}   // namespace

std::string regex_of(const SplitPattern& pattern) {
    if (pattern.rule == SplitRule::regex) return pattern.regex;
    for (const KnownPattern& known : known_patterns) {
        if (known.rule == pattern.rule) return known.regex;
    }
    return "";
}

SplitPattern pattern_of(const std::string& regex) {
    for (const KnownPattern& known : known_patterns) {
        if (regex == known.regex) return {known.rule, ""};
    }
    return regex.empty() ? SplitPattern{} : SplitPattern{SplitRule::regex, regex};
}

bool needs_whole_texts(const SplitPattern& pattern) {
    return pattern.rule == SplitRule::none || pattern.rule == SplitRule::regex || pattern.rule == SplitRule::steps ||
           !pattern.changes.empty();
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    constexpr std::size_t most_bytes = 0xffffff00u;   // offsets within a text are 32 bits
    std::string out;
    std::size_t done = 0;
    for (std::size_t at; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
        out.append(text.substr(done, at - done)).append(to);
        if (out.size() > most_bytes) {
            throw Error(ErrorKind::bad_data, "a text of more than 4 GB after what its tokenizer puts into it",
                        "Cut it into documents.");
        }
    }
    return out.append(text.substr(done));
}

std::string_view normalized(const SplitPattern& pattern, std::string_view text, std::string& storage) {
    if (pattern.nfc) text = to_nfc(text, storage);
    for (const TextChange& change : pattern.changes) {
        if (text.empty()) break;   // nothing is put in front of nothing
        storage = change.kind == TextChange::Kind::prepend ? change.text + std::string(text)
                                                           : replaced(text, change.from, change.text);
        text = storage;
    }
    return text;
}

std::unique_ptr<PieceSplitter> make_splitter(const SplitPattern& pattern) {
    switch (pattern.rule) {
        case SplitRule::none: return std::make_unique<WholeText>();
        case SplitRule::gpt2: return make_block_splitter(gpt2_family);
        case SplitRule::cl100k: return make_block_splitter(cl100k_family);
        case SplitRule::llama3: return make_block_splitter(llama3_family);
        case SplitRule::qwen: return make_block_splitter(qwen_family);
        case SplitRule::steps: return make_step_splitter(pattern.steps);
        case SplitRule::regex: break;
    }
    return make_regex_splitter(pattern.regex);
}

// Cuts before white space. The known rules never put white space behind another character into one piece, except
// newlines behind characters of class other (cl100k), and what they do from a character on does not depend on what came
// before a piece's start.
std::size_t last_safe_cut(const SplitPattern& pattern, std::string_view text) {
    if (needs_whole_texts(pattern)) return 0;
    bool newline_may_join = pattern.rule != SplitRule::gpt2;
    for (std::size_t at = text.size(); at-- > 1;) {
        if (!is_ascii_space(text[at]) || is_ascii_space(text[at - 1])) continue;
        CharClass before = class_before(text, at);
        if (before == CharClass::space) continue;
        if (before == CharClass::other && newline_may_join && text[at] != ' ' && text[at] != '\t') continue;
        return at;
    }
    return 0;
}
