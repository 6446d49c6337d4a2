// Splits by PCRE2: any pattern, and the reference for the hand-written splitters.

#include <algorithm>
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

constexpr std::uint32_t few_steps = 1000;   // compiled code has for a match; what takes more is counted exactly
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
        int problem = 0;
        PCRE2_SIZE offset = 0;
        code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.regex.data()), translated.regex.size(), 0,
                              &problem, &offset, nullptr);
        if (code_ == nullptr) {
            throw Error(ErrorKind::bad_data, text("the pattern does not compile: ", pcre2_message(problem)));
        }
        pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);   // optional: without it matching is only slower
        match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
        context_ = pcre2_match_context_create(nullptr);
        pcre2_set_match_limit(context_, few_steps);
        counted_ = pcre2_match_context_create(nullptr);
        pcre2_set_heap_limit(counted_, 1 << 20);   // KiB
        stack_ = pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr);
        pcre2_jit_stack_assign(context_, nullptr, stack_);
    }
    ~RegexParts() override {
        pcre2_jit_stack_free(stack_);
        pcre2_match_context_free(counted_);
        pcre2_match_context_free(context_);
        pcre2_match_data_free(match_);
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
        found_ = ended_ = false;
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
    // Finds the next match as the package does: not an empty one right behind the last match.
    bool find() {
        const std::size_t size = kinds_of_text_.size();
        while (search_ <= size) {
            int result = match(0, context_);
            if (result == PCRE2_ERROR_MATCHLIMIT) result = match_counted();
            if (result == PCRE2_ERROR_NOMATCH) break;
            if (result < 0) {
                throw Error(ErrorKind::bad_data, text("the tokenizer's pattern failed at character ", search_,
                                                      " of a text: ", pcre2_message(result)));
            }
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

    int match(std::uint32_t options, pcre2_match_context* context) {
        return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(kinds_of_text_.data()), kinds_of_text_.size(), search_,
                           options, match_, context);
    }
    // Matches by PCRE2's interpreter, whose steps all cost about as much (one of the compiled code can scan the rest of
    // the text), and takes them from those left to the text. PCRE2 says only whether a limit sufficed.
    int match_counted() {
        for (std::uint64_t limit = 16 * few_steps;; limit *= 4) {
            limit = std::min<std::uint64_t>({limit, steps_left_, UINT32_MAX});
            pcre2_set_match_limit(counted_, static_cast<std::uint32_t>(limit));
            const int result = match(PCRE2_NO_JIT, counted_);
            steps_left_ -= limit;
            if (result != PCRE2_ERROR_MATCHLIMIT) return result;
            if (steps_left_ == 0) {
                throw Error(
                    ErrorKind::bad_data,
                    text("the tokenizer's pattern takes more than ", steps_of_text, " steps and ", steps_of_character,
                         " for each of a text's ", kinds_of_text_.size(), " characters, at character ", search_),
                    "Take a pattern whose repetitions do not overlap, or shorter texts.");
            }
        }
    }

    static constexpr std::size_t no_match = ~std::size_t{0};
    std::vector<std::uint8_t> kinds_;   // classes of code points, as the translated pattern sees them
    pcre2_code* code_ = nullptr;
    pcre2_match_data* match_ = nullptr;
    pcre2_match_context* context_ = nullptr;
    pcre2_match_context* counted_ = nullptr;
    std::uint64_t steps_left_ = 0;   // for counted matches of this text
    pcre2_jit_stack* stack_ = nullptr;
    std::string_view text_;
    std::string kinds_of_text_;   // one for each character; the places below are among these
    std::size_t at_ = 0;          // end of the last part
    std::size_t byte_ = 0;        // its place in text_
    std::size_t search_ = 0;      // begin of the next search
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
