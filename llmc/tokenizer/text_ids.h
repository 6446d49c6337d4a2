// The one way from a text to the ids that a model reads: prompts, and the contexts and completions of questions.
//
//   TextEncoder encoder(tokenizer);
//   encoder.encode("Once upon");                      // Llama 3: <|begin_of_text|>, Once, upon
//   encoder.encode_continued("Answer:", " yes");      // {<|begin_of_text|>, Answer, :}, {yes}
//
// The tokens that the tokenizer's post-processor puts in front of a text come first, unless the text begins with the
// first of them. Those that it puts behind a text are left out, since a model goes on from there. Names of special
// tokens become those tokens. But for the tokens behind, these are the ids of lm-evaluation-harness, which leaves all
// of it to the tokenizer.
//
// A corpus has its own rule: one token between documents (llmc/data/corpus/corpus.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/tokenizer/tokenizer.h"

struct ContinuedText {
    std::vector<std::uint32_t> context, completion;
};

class TextEncoder {
public:
    // Throws Error(usage) if the tokenizer can only decode.
    explicit TextEncoder(const Tokenizer& tokenizer);

    std::vector<std::uint32_t> encode(std::string_view text);

    // Encodes both together; what lies behind the ids of the context alone is the completion. White space at the end
    // of the context belongs to the completion, with whose first word it forms tokens.
    ContinuedText encode_continued(std::string_view context, std::string_view completion);

private:
    std::vector<std::uint32_t> front_;
    Encoder encoder_;
};

// Returns the text of the tokens in front of a text, for messages; empty: there are none.
std::string front_of_texts(const Tokenizer& tokenizer);

// Returns a warning where the post-processor puts tokens behind a text, which are left out here; else nothing.
std::string warning_of_tokens_behind(const Tokenizer& tokenizer);

// Returns a warning where the files of a model name an end of texts that is no token; else nothing.
std::string warning_of_unknown_eos(const Tokenizer& tokenizer);

// Returns a warning where bytes of UTF-8 have no token, so that texts with them are not encoded whole; else nothing.
std::string warning_of_missing_bytes(const Tokenizer& tokenizer);
