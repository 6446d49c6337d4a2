// manifest.json: what a folder of token shards contains, written last, so a folder with a manifest is complete.
//
//   {
//     "format": "token shards", "version": 1,
//     "tokenizer": {"name": "gpt2", "vocab_size": 50257, "end_of_text": 50256, "hash": "0123456789abcdef"},
//     "token_bytes": 2,
//     "documents": 1234, "source_bytes": 56789,
//     "shards": [{"file": "train_000000.bin", "split": "train", "tokens": 99, "hash": "0123456789abcdef"}, ...]
//   }
//
// Hashes are xxh3 (64 bits, hexadecimal): a shard's over the bytes of its tokens, the tokenizer's as in tokenizer.h.
// The trainer refuses data whose manifest does not fit it, its tokenizer or the model (corpus_check.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/data/corpus/shard_writer.h"
#include "llmc/io/file.h"

struct CorpusManifest {
    std::string tokenizer_name;
    std::uint32_t vocab_size = 0;
    std::uint32_t end_of_text = 0;
    std::uint64_t tokenizer_hash = 0;
    std::uint32_t token_bytes = 0;
    std::uint64_t documents = 0;
    std::uint64_t source_bytes = 0;
    std::vector<ShardInfo> shards;

    std::uint64_t tokens(const std::string& split) const;
};

inline constexpr const char* manifest_file_name = "manifest.json";
// Beside the shards from the begin of their writing until the manifest is there.
inline constexpr const char* unfinished_file_name = "tokenize.unfinished";
inline constexpr const char* replaced_file_name = "tokenize.replaced";   // an older manifest whose shards are removed

// Throws Error: io when unreadable, bad_data (file, and byte or field) when it is not a manifest of this version.
CorpusManifest read_manifest(const FileSystem& files, const std::string& folder);
CorpusManifest parse_manifest(std::string_view content, const std::string& name);
void write_manifest(const CorpusManifest& manifest, const std::string& folder);   // atomically
