// Splits text into the pieces that byte-pair merges never cross ("pretokens").
//
// A tokenizer defines its pieces by a regular expression. The well-known ones have a splitter written by hand, many
// times faster; any other is translated for PCRE2 (oniguruma.h), which is also the oracle the hand-written ones are
// tested against. Some tokenizers define them by several steps, each of which cuts or changes the pieces of the one
// before (steps.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

enum class SplitRule {
    none,     // the whole text is one piece
    gpt2,     // GPT-2 and GPT-3
    cl100k,   // GPT-3.5 and GPT-4, as tiktoken has it now
    llama3,   // cl100k as first published: differs only in white space at the very end of a text
    qwen,     // Qwen 2, 2.5 and 3: llama3 with every digit alone
    regex,    // any other expression
    steps,    // a list of steps
};

// Says what becomes of the matches of a step's expression, and of the text between them.
enum class SplitBehavior {
    isolated,               // each is a piece
    removed,                // matches are dropped, the rest are pieces
    merged_with_previous,   // a match ends the piece of the text in front of it
    merged_with_next,       // a match begins the piece of the text behind it
    contiguous,             // matches without text between them are one piece
};

// A step of a pre-tokenizer, as Hugging Face's tokenizers package runs it: makes pieces of each piece in turn.
struct SplitStep {
    enum class Kind {
        split,         // cuts by an expression
        prefix,        // puts `text` in front of a piece that does not begin with it
        replace,       // puts `text` in place of every `from`
        spell_bytes,   // spells every byte as the character that stands for it (byte_characters.h)
        words,         // cuts in front of every `text` that follows something else
    };
    Kind kind = Kind::split;
    SplitRule rule = SplitRule::none;   // and what follows: of a split; rule regex or one of the known
    std::string regex = {};
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;   // text between matches counts as matches
    std::string text = {}, from = {};
    bool first_only = false;   // a prefix in front of the first text of a document only
    bool operator==(const SplitStep&) const = default;
};

// Changes a text before it is split: puts `text` in front of it, or in place of every `from`.
struct TextChange {
    enum class Kind { prepend, replace };
    Kind kind;
    std::string text, from = {};
    bool operator==(const TextChange&) const = default;
};

struct SplitPattern {
    SplitRule rule = SplitRule::none;
    std::string regex;                   // for SplitRule::regex; the known rules' own expressions are given by regex_of
    bool nfc = false;                    // text is brought to Unicode's normal form C before it is split
    std::vector<SplitStep> steps = {};   // for SplitRule::steps
    std::vector<TextChange> changes = {};   // applied after `nfc`, before the text is split
};

// Returns the expression of a pattern in the syntax of Hugging Face's files, Oniguruma's; empty for SplitRule::none.
std::string regex_of(const SplitPattern& pattern);
// Returns the pattern of an expression: one of the known rules where it is spelled in a way known to mean the same.
SplitPattern pattern_of(const std::string& regex);

class PieceSplitter {
public:
    virtual ~PieceSplitter() = default;

    // Starts on a text: valid UTF-8, below 4 GiB, kept alive and unchanged by the caller; `first`: nothing of its
    // document lies in front of it. Returns the text that is made of pieces: the same, but where steps change it; then
    // it lives until the next begin().
    virtual std::string_view begin(std::string_view text, bool first = true) = 0;
    // Writes the ends (offsets behind the last byte) of the next pieces; returns how many, 0 after the last. Pieces
    // are not empty, follow each other without gaps and cover the text. `capacity` is at least split_capacity.
    virtual std::size_t next(std::uint32_t* ends, std::size_t capacity) = 0;
};
inline constexpr std::size_t split_capacity = 128;

// Throws Error: bad_data when a regular expression has no translation, usage when this build has no PCRE2.
std::unique_ptr<PieceSplitter> make_splitter(const SplitPattern& pattern);
// Splits with PCRE2 whatever the expression: for expressions without a rule, and as the reference in tests.
std::unique_ptr<PieceSplitter> make_regex_splitter(const std::string& regex);
// Runs the steps of SplitRule::steps.
std::unique_ptr<PieceSplitter> make_step_splitter(const std::vector<SplitStep>& steps);

// Returns the text as it is split, and as added tokens are found in it: `nfc` and `changes` of a pattern applied; in
// `storage` where it is another. Throws Error as to_nfc() does.
std::string_view normalized(const SplitPattern& pattern, std::string_view text, std::string& storage);
// Returns the text with `to` in place of every `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

// Returns the text in normal form C, in `storage` where it is not so already; bytes that are not UTF-8 stay as they
// are. Throws Error usage when this build has no ICU and the text has a character from U+0300 on, below which nothing
// changes.
std::string_view to_nfc(std::string_view text, std::string& storage);

// Returns true if nothing is known of where a text can be cut.
bool needs_whole_texts(const SplitPattern& pattern);
// Returns a place at which a text can be cut so that splitting both parts alone gives the same pieces as splitting the
// whole: the last such in (0, text.size()), or 0 when none is found. The text may end within a character.
std::size_t last_safe_cut(const SplitPattern& pattern, std::string_view text);
