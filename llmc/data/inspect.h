// Inspects prepared corpora: verifies every byte, counts, and turns tokens back into text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/data/corpus/manifest.h"
#include "llmc/data/token_file.h"
#include "llmc/tokenizer/tokenizer.h"

// Checks a folder against its manifest: that the tokenizer in it is the one named; of every shard the header, size,
// number of tokens, every id, and the hash. Throws Error bad_data with file and offset at the first thing that is
// wrong.
CorpusManifest verify_corpus(const std::string& folder);

// Returns the shards of a split ("train", "val"; empty: all) of a folder, or the file itself when `path` is one.
std::vector<std::string> shards_of(const std::string& path, const std::string& split);

// Reads the shards and passes their text on in pieces, special tokens as their text.
void decode_shards(const Tokenizer& tokenizer, const std::vector<std::string>& shards,
                   const std::function<void(const std::string&)>& write);

struct CorpusStats {
    std::uint64_t tokens = 0, documents = 0, bytes = 0;   // bytes of text, end-of-text apart
    std::uint64_t longest_document = 0;                   // in tokens
    std::uint32_t distinct_ids = 0;
    double entropy = 0;                     // entropy of single tokens, in bits: the need of a model without context
    std::vector<std::uint64_t> id_counts;   // per id
};
// Lengths of documents, and the share of attention that document masks leave in sequences of T tokens, cut from each
// shard as the loader cuts them: of the T^2 pairs of a sequence, the sum of L^2 over its pieces of documents.
struct DocumentCounts {
    std::uint64_t documents = 0, longest = 0;   // in tokens, the one that begins a document included
    std::vector<std::uint64_t> by_length;       // entry i: documents of 2^i to 2^(i+1) - 1 tokens
    double attention_left = 1;                  // 1: there is no whole sequence
};
DocumentCounts count_documents(const std::vector<TokenFile>& shards, std::int64_t T, std::int32_t end_of_text,
                               std::int64_t vocab_size);
// Draws by_length as lines of bars.
std::string picture_of(const DocumentCounts& counts);

CorpusStats count_shards(const Tokenizer& tokenizer, const std::vector<std::string>& shards);
