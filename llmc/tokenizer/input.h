// Reads documents from files, in bounded memory.
//
// A reader hands out batches of about a megabyte: many small documents, or part of a large one. Large documents are cut
// where cutting does not change their tokens (last_safe_cut in split.h), so batches can be encoded apart. Offsets and
// sizes in compressed files (byte_stream.h) are those of their uncompressed content. JSON lines that announce their
// last one (stream_begin in jsonl.h) must end with it; nothing of these two is handed out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/tokenizer/input_kind.h"
#include "llmc/tokenizer/jsonl.h"
#include "llmc/tokenizer/tokenizer.h"

struct InputOptions {
    std::vector<std::string> files;   // in order; "-" is standard input
    InputFormat format = InputFormat::automatic;
    std::string field = "text";        // field of a JSON line that holds the text
    bool skip_bad_lines = false;       // lines without a text in that field are passed over and counted
    std::string separator;             // text between documents; empty: a file is one document
    bool keep_separator = false;       // leaves it at the end of the document before it
    bool strip = false;                // documents between separators lose white space (ASCII) at both ends
    std::uint64_t max_bytes = ~0ull;   // stop before the document that would bring the input above this
};

// A document, or part of one: bytes [begin, end) of its batch.
struct InputPart {
    std::size_t begin = 0, end = 0;
    bool starts_document = false;
    std::uint64_t document = 0;   // counted over all inputs
    std::uint32_t file = 0;       // index in InputOptions::files
    std::uint64_t offset = 0;     // place of the part in its file, in bytes
    std::uint64_t line = 0;       // line where the part begins, counted from 1; JSON only
};

struct InputBatch {
    std::string bytes;
    std::vector<InputPart> parts;
    bool json = false;   // parts are objects, still to be taken apart (json_text)
};

// Returns the text of a part of a batch of JSON, as json_text in jsonl.h.
std::optional<std::string_view> text_of_object(const InputOptions& options, const InputBatch& batch,
                                               const InputPart& part, std::string& value, SkippedLines& skipped);

// Places where large documents may be cut; they depend on what will be done with the parts.
struct DocumentCuts {
    SplitPattern pattern;
    bool anywhere = false;      // nothing joins bytes
    bool valid_parts = false;   // keeps what follows a byte that is not UTF-8 together with it
};
DocumentCuts cuts_for(const Tokenizer& tokenizer, EncodeOptions encoding);

// Position between two batches.
struct InputPosition {
    std::uint64_t file = 0, offset = 0;            // the next byte to hand out
    std::uint64_t line = 0;                        // its line, counted from 1; JSON only
    bool in_document = false;                      // a document goes on there
    std::uint64_t documents = 0, bytes_read = 0;   // counts of everything before it
};

class DocumentReader {
public:
    // With several threads as many compressed files are inflated at once (streams_ahead.h).
    DocumentReader(InputOptions options, DocumentCuts cuts, int threads = 1);
    ~DocumentReader();

    // Reads the next batch, reusing its memory; false after the last. Throws Error io and bad_data.
    bool next(InputBatch& batch);

    // Returns the position after the last batch; seek() goes on there, if called before the first batch. Not in
    // standard input.
    InputPosition position() const;
    void seek(const InputPosition& position);

    const InputOptions& options() const { return options_; }
    std::uint64_t bytes_read() const;    // read from all inputs so far
    std::uint64_t bytes_total() const;   // estimated of compressed files; 0: unknown, for standard input
    std::uint64_t documents() const;     // begun so far

private:
    struct State;
    InputOptions options_;
    std::unique_ptr<State> state_;
};
