// From files of text to a folder of token shards, streaming.
//
// Every document becomes end-of-text followed by its tokens, in the order of the inputs. A file is one document, unless
// the options split it. What is written is a pure function of the inputs and options.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_manifest.h"

struct CorpusOptions {
    std::vector<std::string> inputs;   // files, in order
    std::string output;                // folder, made if absent; an older corpus in it is replaced
    std::string name;                  // prefix of the shards' names
    std::uint64_t shard_tokens = 100'000'000;
    std::uint64_t max_bytes = ~0ull;   // stop before the document that would exceed this many bytes of input
    // Validation data: each document with this probability (drawn by its index, not by a running generator), or the
    // first so many tokens of the corpus.
    double val_fraction = 0;
    std::uint64_t val_tokens = 0;
};

struct CorpusProgress {
    std::uint64_t bytes_done = 0, bytes_total = 0;   // total 0: unknown
    std::uint64_t tokens = 0, documents = 0;
};

// Throws Error io or bad_data with the file and offset. `report` is called often; it decides what to show.
CorpusManifest prepare_corpus(const Tokenizer& tokenizer, const CorpusOptions& options,
                              const std::function<void(const CorpusProgress&)>& report);
