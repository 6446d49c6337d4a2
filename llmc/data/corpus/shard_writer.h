// Writes token shards, streaming: token files (token_file.h) of any number of tokens in bounded memory.
//
// A split ("train", "val") is a sequence of shards of equal length, the last one shorter: <name>_train_000000.bin and
// so on. Documents run on across shards. Every shard is written under a temporary name, synced and renamed, so a file
// with a shard's name is always whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/data/token_file.h"

struct ShardInfo {
    std::string file;   // name within the folder
    std::string split;
    std::uint64_t tokens = 0;
    std::uint64_t hash = 0;   // hash_of_tokens; the header is known from the other fields
};

class ShardWriter {
public:
    struct Options {
        std::string folder;   // must exist
        std::string name;     // prefix of the file names; may be empty
        std::string split;
        TokenFormat format = TokenFormat::gpt2;
        std::uint64_t shard_tokens = 100'000'000;
    };
    explicit ShardWriter(Options options);
    ~ShardWriter();   // removes what was not finished

    // Every id must fit the format. Throws Error io when the disk does not take them.
    void append(const std::uint32_t* ids, std::size_t count);
    void finish();   // completes the last shard

    // Tokens of the shard that is being written.
    struct OpenTokens {
        std::uint64_t count = 0;
        std::uint64_t hash = 0;   // hash_of_tokens of so many
    };
    // Puts on the disk what has been written so far: shards() and the open one. From then on these files stay where the
    // writing fails.
    OpenTokens save_point();
    // Makes a writer of the same options go on from there, before the first token. Every byte is read. Returns the path
    // of a file that is not there as it was, and has changed nothing then; empty: it goes on.
    std::string resume(const std::vector<ShardInfo>& shards, OpenTokens open);

    std::uint64_t tokens() const { return total_tokens_; }
    const std::vector<ShardInfo>& shards() const { return shards_; }   // complete ones

private:
    struct OpenShard;
    void open_shard(bool goes_on = false);
    std::string path_of(std::size_t number) const;
    bool has_header(const std::string& path, std::uint64_t tokens) const;
    void flush();
    void close_shard();

    Options options_;
    std::unique_ptr<OpenShard> open_;
    std::uint64_t total_tokens_ = 0;
    std::vector<ShardInfo> shards_;
    bool keeps_ = false;   // leaves unfinished files where they are
};
