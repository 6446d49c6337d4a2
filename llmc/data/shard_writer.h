// Writes token shards in llm.c's formats.
//
// A shard is a header of 256 little-endian int32 (magic, version, token count, zeros) and the tokens:
//
//   format   magic      version   tokens
//   gpt2     20240520   1         uint16
//   llama3   20240801   7         uint32
//
// A split ("train", "val") is a sequence of shards of equal length, the last one shorter: <name>_train_000000.bin and
// so on. Documents run on across shards. Every shard is written under a temporary name, synced and renamed, so a file
// with a shard's name is always whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

enum class ShardFormat { gpt2, llama3 };

inline constexpr std::size_t shard_header_words = 256;
inline constexpr std::size_t shard_header_bytes = shard_header_words * sizeof(std::int32_t);
inline constexpr std::uint64_t max_shard_tokens = 0x7fffffff;   // the header counts them in an int32

std::size_t token_bytes(ShardFormat format);   // 2 or 4
std::array<std::int32_t, shard_header_words> shard_header(ShardFormat format, std::uint64_t tokens);

struct ShardInfo {
    std::string file;   // name within the folder
    std::string split;
    std::uint64_t tokens = 0;
    std::uint64_t hash = 0;   // xxh3 of the tokens' bytes, the header apart (it is fully known from the other fields)
};

class ShardWriter {
public:
    struct Options {
        std::string folder;   // must exist
        std::string name;     // prefix of the file names; may be empty
        std::string split;
        ShardFormat format = ShardFormat::gpt2;
        std::uint64_t shard_tokens = 100'000'000;
    };
    explicit ShardWriter(Options options);
    ~ShardWriter();   // removes what was not finished

    // Every id must fit the format. Throws Error io when the disk does not take them.
    void append(const std::uint32_t* ids, std::size_t count);
    void finish();   // completes the last shard

    std::uint64_t tokens() const { return total_tokens_; }
    const std::vector<ShardInfo>& shards() const { return shards_; }   // complete ones

private:
    struct OpenShard;
    void open_shard();
    void flush();
    void close_shard();

    Options options_;
    std::unique_ptr<OpenShard> open_;
    std::uint64_t total_tokens_ = 0;
    std::vector<ShardInfo> shards_;
};
