// From files of text to a folder of token shards, streaming, on several threads.
//
// Every document becomes end-of-text followed by its tokens, in the order of the inputs. What is written is a pure
// function of the inputs and options; the number of threads changes only the time it takes. Memory is a few batches per
// thread, and 16 MiB per thread where inputs are compressed (streams_ahead.h), whatever the size of the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/data/corpus/corpus_state.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/io/folder_lock.h"
#include "llmc/tokenizer/input.h"
#include "llmc/tokenizer/tokenizer.h"

struct CorpusOptions {
    InputOptions input;
    EncodeOptions encoding;
    int threads = 1;
    std::string output;      // folder, made if absent
    bool overwrite = true;   // an older corpus in it is replaced
    std::string name;        // prefix of the shards' names
    std::uint64_t shard_tokens = 100'000'000;
    bool dedup = false;   // keeps only the first of documents with the same tokens
    bool wide = false;    // uint32 tokens (Llama-3's format) even where uint16 would do
    // Validation data: the first so many files of the input; each document with this probability, drawn by a hash of
    // its tokens, so that others beside it change nothing; or the first so many tokens of the corpus.
    std::size_t val_files = 0;
    double val_fraction = 0;
    std::uint64_t val_tokens = 0;
    double save_seconds = 5;   // between states from which a call that is cut goes on
};

struct CorpusProgress {
    std::uint64_t bytes_done = 0, bytes_total = 0;   // total 0: unknown
    std::uint64_t tokens = 0, documents = 0;
    std::uint64_t bytes_before = 0;   // part of bytes_done that an earlier call, which was cut, has read
};

struct PreparedCorpus {
    CorpusManifest manifest;
    std::vector<SourceCount> files;   // counts of each input
    SkippedLines skipped;             // with InputOptions::skip_bad_lines
    std::string changed;              // a file of an earlier call that is not as it was, so that this one began anew
};

// Throws Error(usage) where an earlier call has written `file` and nothing may be replaced: what took hours is not
// replaced by accident.
void refuse_earlier(const CorpusOptions& options, const std::string& file);

// The folder of a call that writes there, made if absent and locked by tokenize.lock. Throws Error(usage) where another
// one is writing there, or has written `file` (refuse_earlier).
class OutputFolder {
public:
    OutputFolder(const CorpusOptions& options, const std::string& file);

private:
    OutputLock lock_;
};

// Goes on where an earlier call of the same options, inputs and tokenizer was cut (corpus_state.h): what is then there
// is what it would have made, to the byte: shards that were finished are read, and if one has changed, all are made
// anew. Throws Error io or bad_data with the file and offset: the first in the order of the input, whatever the threads
// did. `report` is called often, by one thread at a time; it decides what to show.
PreparedCorpus prepare_corpus(const Tokenizer& tokenizer, const CorpusOptions& options,
                              const std::function<void(const CorpusProgress&)>& report);
