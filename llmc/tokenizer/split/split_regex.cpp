// Splits by PCRE2: any pattern, and the reference for the hand-written splitters.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/oniguruma.h"
#include "llmc/tokenizer/split/pattern_parts.h"
#include "llmc/tokenizer/split/split.h"

#ifdef USE_PCRE2

#include <pcre2.h>

namespace {

// Limits of a match by PCRE2's compiled code: steps, and characters from where it is searched on, for it passes over a
// run of characters in one step. A match that takes more characters may have fewer steps; what takes more yet is
// counted.
constexpr std::uint32_t few_steps = 250, fewer_steps = 16;
constexpr std::size_t few_characters = 256, many_characters = 16384;
constexpr std::size_t characters_of_step = 64;   // that compiled code passes over while a step is counted
constexpr std::uint64_t fewest_counted = 64;     // steps, of one counted match
constexpr std::uint64_t steps_of_text = 10'000'000, steps_of_character = 200;   // in all counted matches of a text

std::string pcre2_message(int code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof message);
    return reinterpret_cast<const char*>(message);
}

class RegexParts : public PatternParts {
public:
    explicit RegexParts(const std::string& regex) {
        TranslatedPattern translated = translate_oniguruma(regex);
        kinds_ = std::move(translated.kinds);
        code_ = compiled(translated.regex, 0);
        // optional: without it matching is only slower
        pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
        // goes back over every character of a run, which takes as many steps as the run has characters
        counted_code_ = compiled(translated.regex, PCRE2_NO_AUTO_POSSESS | PCRE2_NO_START_OPTIMIZE);
        std::uint32_t has_last = 0;
        pcre2_pattern_info(code_, PCRE2_INFO_LASTCODETYPE, &has_last);
        if (has_last == 1) pcre2_pattern_info(code_, PCRE2_INFO_LASTCODEUNIT, &needed_.emplace());
        match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
        context_ = pcre2_match_context_create(nullptr);
        pcre2_set_match_limit(context_, few_steps);
        wide_context_ = pcre2_match_context_create(nullptr);
        pcre2_set_match_limit(wide_context_, fewer_steps);
        counted_ = pcre2_match_context_create(nullptr);
        pcre2_set_heap_limit(counted_, 1 << 20);   // KiB
        stack_ = pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr);
        for (pcre2_match_context* context : {context_, wide_context_}) {
            pcre2_jit_stack_assign(context, nullptr, stack_);
        }
    }
    ~RegexParts() override {
        pcre2_jit_stack_free(stack_);
        pcre2_match_context_free(counted_);
        pcre2_match_context_free(wide_context_);
        pcre2_match_context_free(context_);
        pcre2_match_data_free(match_);
        pcre2_code_free(counted_code_);
        pcre2_code_free(code_);
    }
    RegexParts(const RegexParts&) = delete;
    RegexParts& operator=(const RegexParts&) = delete;

    void begin(std::string_view text) override {
        text_ = text;
        kinds_of_text_.clear();
        for (std::size_t i = 0; i < text.size();) {
            const Utf8Char c = decode_utf8(text.data() + i);
            kinds_of_text_ += static_cast<char>(kinds_[c.code]);
            i += c.length;
        }
        steps_left_ = steps_of_text + steps_of_character * kinds_of_text_.size();
        at_ = byte_ = search_ = match_end_ = 0;
        match_begin_ = no_match;
        last_begin_ = needed_ ? kinds_of_text_.rfind(static_cast<char>(*needed_)) : kinds_of_text_.size();
        found_ = false;
        ended_ = last_begin_ == std::string::npos;
    }

    bool next(PatternPart& part) override {
        if (!found_ && !ended_) {
            found_ = find();
            ended_ = !found_;
        }
        if (!found_ && at_ == kinds_of_text_.size()) return false;
        part.is_match = found_ && match_begin_ <= at_;
        const std::size_t end = !found_ ? kinds_of_text_.size() : part.is_match ? match_end_ : match_begin_;
        for (; at_ < end; at_++) byte_ += decode_utf8(text_.data() + byte_).length;
        part.end = static_cast<std::uint32_t>(byte_);
        if (part.is_match) found_ = false;
        return true;
    }

private:
    static pcre2_code* compiled(const std::string& regex, std::uint32_t options) {
        int problem = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), options, &problem,
                                         &offset, nullptr);
        if (code != nullptr) return code;
        throw Error(ErrorKind::bad_data, text("the pattern does not compile: ", pcre2_message(problem)));
    }

    // Finds the next match as the package does: not an empty one right behind the last match.
    bool find() {
        while (search_ <= last_begin_) {
            if (!match_next()) continue;
            const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_);
            const bool again = range[0] == range[1] && match_begin_ != no_match && range[1] == match_end_;
            if (again) {
                search_++;
                continue;
            }
            match_begin_ = range[0];
            match_end_ = search_ = range[1];
            return true;
        }
        return false;
    }

    // Returns true if a match is found; else moves search_ behind places where none begins.
    bool match_next() {
        int result = match_compiled(few_characters, context_);
        if (result == PCRE2_ERROR_PARTIAL) {
            const std::size_t begin = search_;
            result = match_compiled(many_characters, wide_context_);
            take_steps((std::min(search_, kinds_of_text_.size()) - begin + 1) * many_characters / characters_of_step);
            if (result == PCRE2_ERROR_PARTIAL) return search_ == begin && match_counted();
        }
        if (result == PCRE2_ERROR_MATCHLIMIT) {   // PCRE2 does not say where that match began
            const std::size_t end = std::min(search_ + few_characters, kinds_of_text_.size());
            while (search_ <= end) {
                if (match_counted()) return true;
            }
            return false;
        }
        check(result);
        return result != PCRE2_ERROR_NOMATCH;
    }

    // Matches by compiled code, which sees so many characters alone. Moves search_ to the begin of the match, or behind
    // places where none begins: PCRE2_ERROR_PARTIAL, where it depends on the characters behind whether one does.
    int match_compiled(std::size_t characters, pcre2_match_context* context) {
        const std::size_t size = kinds_of_text_.size(), end = std::min(search_ + characters, size);
        const int result = match(code_, end, 0, context);
        const bool has_place = result >= 0 || result == PCRE2_ERROR_PARTIAL;
        const std::size_t place = has_place ? pcre2_get_ovector_pointer(match_)[0] : end;
        if (has_place && (place < end || end == size)) {
            search_ = place;
        } else if (has_place || result == PCRE2_ERROR_NOMATCH) {
            search_ = end < size ? end : size + 1;
            return PCRE2_ERROR_NOMATCH;
        }
        return result;
    }

    // Returns true if a match begins at search_; else moves search_ on by one. PCRE2's interpreter takes about as long
    // for every step; what it takes is subtracted from the steps left to the text. PCRE2 says only whether a limit
    // sufficed.
    bool match_counted() {
        std::size_t characters = many_characters;
        for (std::uint64_t limit = fewest_counted;;) {
            limit = std::min<std::uint64_t>({limit, steps_left_, UINT32_MAX});
            pcre2_set_match_limit(counted_, static_cast<std::uint32_t>(limit));
            const std::size_t end = std::min(search_ + characters, kinds_of_text_.size());
            const int result = match(counted_code_, end, PCRE2_ANCHORED | PCRE2_NO_JIT, counted_);
            const bool is_partial = result == PCRE2_ERROR_PARTIAL, is_over = result == PCRE2_ERROR_MATCHLIMIT;
            if (!is_partial && !is_over) {
                steps_left_ -= limit;
                check(result);
                if (result == PCRE2_ERROR_NOMATCH) search_++;
                return result != PCRE2_ERROR_NOMATCH;
            }
            take_steps(is_over ? limit : limit + characters);
            (is_over ? limit : characters) *= 4;
        }
    }

    void take_steps(std::uint64_t steps) {
        steps_left_ -= std::min(steps, steps_left_);
        if (steps_left_ > 0) return;
        throw Error(ErrorKind::bad_data,
                    text("the tokenizer's pattern takes more than ", steps_of_text, " steps and ", steps_of_character,
                         " for each of a text's ", kinds_of_text_.size(), " characters, at character ", search_),
                    "Take a pattern whose repetitions do not overlap, or shorter texts.");
    }

    // Matches from search_ on, with the text up to `end`.
    int match(const pcre2_code* code, std::size_t end, std::uint32_t options, pcre2_match_context* context) {
        if (end < kinds_of_text_.size()) options |= PCRE2_PARTIAL_HARD;
        return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(kinds_of_text_.data()), end, search_, options, match_,
                           context);
    }

    void check(int result) const {
        if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return;
        throw Error(ErrorKind::bad_data, text("the tokenizer's pattern failed at character ", search_,
                                              " of a text: ", pcre2_message(result)));
    }

    static constexpr std::size_t no_match = ~std::size_t{0};
    std::vector<std::uint8_t> kinds_;       // classes of code points, as the translated pattern sees them
    std::optional<std::uint32_t> needed_;   // a class that every match has, or a look ahead of it
    pcre2_code* code_ = nullptr;
    pcre2_code* counted_code_ = nullptr;
    pcre2_match_data* match_ = nullptr;
    pcre2_match_context* context_ = nullptr;
    pcre2_match_context* wide_context_ = nullptr;
    pcre2_match_context* counted_ = nullptr;
    std::uint64_t steps_left_ = 0;   // for counted matches of this text
    pcre2_jit_stack* stack_ = nullptr;
    std::string_view text_;
    std::string kinds_of_text_;    // one for each character; the places below are among these
    std::size_t at_ = 0;           // end of the last part
    std::size_t byte_ = 0;         // its place in text_
    std::size_t search_ = 0;       // begin of the next search
    std::size_t last_begin_ = 0;   // no match begins behind
    std::size_t match_begin_ = no_match, match_end_ = 0;
    bool found_ = false;   // a match that has not been handed out
    bool ended_ = false;   // there is no further match
};

}   // namespace

std::unique_ptr<PatternParts> make_pattern_parts(const std::string& regex) {
    return std::make_unique<RegexParts>(regex);
}

#else

std::unique_ptr<PatternParts> make_pattern_parts(const std::string& regex) {
    throw Error(ErrorKind::usage, text("this build has no PCRE2, which the tokenizer's pattern needs: ", regex),
                "Install libpcre2-dev and build again.");
}

#endif

namespace {

// Makes a piece of every match, and of the text between two, so that nothing is lost; an empty match only cuts.
class RegexSplitter : public PieceSplitter {
public:
    explicit RegexSplitter(const std::string& regex) : parts_(make_pattern_parts(regex)) {}

    std::string_view begin(std::string_view text, bool) override {
        parts_->begin(text);
        end_ = 0;
        return text;
    }
    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::size_t count = 0;
        for (PatternPart part; count < capacity && parts_->next(part); end_ = part.end) {
            if (part.end > end_) ends[count++] = part.end;
        }
        return count;
    }

private:
    std::unique_ptr<PatternParts> parts_;
    std::uint32_t end_ = 0;   // the last part ends here
};

}   // namespace

std::unique_ptr<PieceSplitter> make_regex_splitter(const std::string& regex) {
    return std::make_unique<RegexSplitter>(regex);
}
