// Checks prepared data before a training starts: data, tokenizer and model must belong together.
//
// The tokenize tool leaves a manifest beside its shards (manifest.h). Where a shard's folder has one, checked
// are, in this order:
//   - the tokenizer.bin and the tokenizer.json beside the shards are the one the manifest names;
//   - the manifest's vocabulary is as large as the model's;
//   - training and validation data were made with the same tokenizer;
//   - the tokenizer in the folder of every model that is continued (a checkpoint, --model DIR; tokenizer.bin, or a
//     tokenizer.json that we can read) is that one too;
//   - every shard in use is listed, with as many tokens as the file has, and with the hash that its tokens have.
// What is wrong is Error(bad_data) naming the file, what was found, what was expected and what to do. Data without a
// manifest (made by llm.c's scripts, say) passes: nothing is known about it; but not what tokenize has left unfinished.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/data/corpus/manifest.h"
#include "llmc/data/token_file.h"
#include "llmc/io/file.h"

struct CorpusUse {
    std::string flag;      // the option that named the data, for messages
    std::string pattern;   // pattern of its shards, or their folder (data_files.h)
};

struct CorpusExpectation {
    std::vector<CorpusUse> data;
    std::int64_t vocab_size = 0;              // the model's
    std::string why_that_size = {};           // origin of vocab_size, for a message; empty: it was asked for
    bool larger_is_meant = false;             // --vocab-size was given: it may exceed the data's
    std::vector<std::string> model_folders;   // folders of the weights to start from; empty names are passed over
    // Hashing more than this at the start would take minutes: the smallest shards are hashed, up to so many bytes. 0
    // for the ranks that rely on another's verdict.
    std::uint64_t max_hashed_bytes = 4ull << 30;
};

// Returns how many bytes of shards were not hashed, for the caller to tell.
std::uint64_t check_corpora(const FileSystem& files, const CorpusExpectation& expected);

// The hash (tokenizer.h) of the vocabulary in a folder's tokenizer.bin, or in its tokenizer.json; none where there is
// neither, or where they cannot tell: cut tokens of llm.c's format, and kinds of tokenizer that are not ours.
std::optional<std::uint64_t> tokenizer_hash(const FileSystem& files, const std::string& folder);

// The tokenizers beside shards against their manifest.
void check_tokenizer_beside(const FileSystem& files, const std::string& folder, const CorpusManifest& manifest);

// One shard against what its manifest says: the width and number of its tokens; their hash.
void check_shard(const TokenFile& file, const ShardInfo& listed, const CorpusManifest& manifest,
                 const std::string& manifest_path);
void check_shard_hash(const FileSystem& files, const std::string& path, const ShardInfo& listed,
                      const std::string& manifest_path);
