// Splits by PCRE2: any pattern, and the reference for the hand-written splitters.

#include "llmc/base/error.h"
#include "llmc/tokenizer/split/split.h"

#ifdef USE_PCRE2

#include <pcre2.h>

namespace {

std::string pcre2_message(int code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof message);
    return reinterpret_cast<const char*>(message);
}

class RegexSplitter : public PieceSplitter {
public:
    explicit RegexSplitter(const std::string& regex) {
        int problem = 0;
        PCRE2_SIZE offset = 0;
        // `$` means the end of the text only, as in tiktoken
        code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &problem, &offset, nullptr);
        if (code_ == nullptr) {
            throw Error(ErrorKind::bad_data, text("the tokenizer's pattern does not compile at its character ", offset,
                                                  ": ", pcre2_message(problem), ": ", regex));
        }
        pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);   // optional: without it matching is only slower
        match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
        context_ = pcre2_match_context_create(nullptr);
        stack_ = pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr);
        pcre2_jit_stack_assign(context_, nullptr, stack_);
    }
    ~RegexSplitter() override {
        pcre2_jit_stack_free(stack_);
        pcre2_match_context_free(context_);
        pcre2_match_data_free(match_);
        pcre2_code_free(code_);
    }
    RegexSplitter(const RegexSplitter&) = delete;
    RegexSplitter& operator=(const RegexSplitter&) = delete;

    void begin(std::string_view text) override {
        text_ = text;
        at_ = search_ = match_end_ = 0;
    }

    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::size_t count = 0;
        while (count < capacity && at_ < text_.size()) {
            if (match_end_ <= at_) find();
            // text between two matches is a piece too, so that nothing is lost
            at_ = match_begin_ > at_ ? match_begin_ : match_end_;
            ends[count++] = static_cast<std::uint32_t>(at_);
        }
        return count;
    }

private:
    // Finds the next match that is not empty, or an empty one at the end of the text.
    void find() {
        while (true) {
            int result = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), search_,
                                     PCRE2_NO_UTF_CHECK, match_, context_);
            if (result == PCRE2_ERROR_NOMATCH) {
                match_begin_ = match_end_ = text_.size();
                return;
            }
            if (result < 0) {
                throw Error(ErrorKind::bad_data, text("the tokenizer's pattern failed at byte ", search_,
                                                      " of a text: ", pcre2_message(result)));
            }
            const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_);
            match_begin_ = range[0];
            match_end_ = search_ = range[1];
            if (match_end_ > match_begin_) return;
            if (search_ >= text_.size()) {
                match_begin_ = match_end_ = text_.size();
                return;
            }
            do search_++;   // behind an empty match, go on with the next character
            while (search_ < text_.size() && (static_cast<unsigned char>(text_[search_]) & 0xc0) == 0x80);
        }
    }

    pcre2_code* code_ = nullptr;
    pcre2_match_data* match_ = nullptr;
    pcre2_match_context* context_ = nullptr;
    pcre2_jit_stack* stack_ = nullptr;
    std::string_view text_;
    std::size_t at_ = 0;       // end of the last piece
    std::size_t search_ = 0;   // begin of the next search
    std::size_t match_begin_ = 0, match_end_ = 0;
};

}   // namespace

std::unique_ptr<PieceSplitter> make_regex_splitter(const std::string& regex) {
    return std::make_unique<RegexSplitter>(regex);
}

#else

std::unique_ptr<PieceSplitter> make_regex_splitter(const std::string& regex) {
    throw Error(ErrorKind::usage, text("this build has no PCRE2, which the tokenizer's pattern needs: ", regex),
                "Install libpcre2-dev and build again.");
}

#endif
