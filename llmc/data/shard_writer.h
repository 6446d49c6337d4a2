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

    // Puts on the disk what has been written so far: shards() and the open one, whose number of tokens it returns. From
    // then on these files stay where the writing fails.
    std::uint64_t save_point();
    // A writer of the same options goes on from there, before the first token. False, and nothing has been changed,
    // where the files are not there as they were.
    bool resume(const std::vector<ShardInfo>& shards, std::uint64_t open_tokens);

    std::uint64_t tokens() const { return total_tokens_; }
    const std::vector<ShardInfo>& shards() const { return shards_; }   // complete ones

private:
    struct OpenShard;
    void open_shard(bool goes_on = false);
    std::string path_of(std::size_t number) const;
    void flush();
    void close_shard();

    Options options_;
    std::unique_ptr<OpenShard> open_;
    std::uint64_t total_tokens_ = 0;
    std::vector<ShardInfo> shards_;
    bool keeps_ = false;   // leaves unfinished files where they are
};
