// Token files in llm.c's format, read with every check.
//
//   byte 0      256 little-endian int32: [0] magic, [1] version, [2] number of tokens (1 to 2^31 - 1), rest unused
//   byte 1024   the tokens, without a gap:  magic 20240520, version 1: uint16  (GPT-2)
//                                           magic 20240801, version 7: uint32  (Llama-3)
//   end         directly after the last token
//
// Whatever is wrong with a file is Error(bad_data) with file, byte, what was found, what was expected and what to do;
// a file that cannot be opened or read is Error(io).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "llmc/io/open_files.h"

enum class TokenFormat { gpt2, llama3 };

constexpr std::uint64_t kTokenHeaderBytes = 1024;
constexpr std::uint64_t kMaxFileTokens = 0x7fffffff;   // the header counts them in an int32
constexpr std::uint64_t bytes_per_token(TokenFormat format) { return format == TokenFormat::gpt2 ? 2 : 4; }

// The header of a file of `count` tokens.
std::array<std::int32_t, 256> token_file_header(TokenFormat format, std::uint64_t count);

class TokenFile {
public:
    // Opens the file and checks its header, and its size against the number of tokens.
    TokenFile(const FileSystem& files, const std::string& path);
    // Opens it among other files, of which only some stay open.
    TokenFile(std::shared_ptr<OpenFiles> files, const std::string& path);

    const std::string& path() const { return path_; }
    TokenFormat format() const { return format_; }
    std::uint64_t count() const { return count_; }   // tokens
    std::uint64_t bytes() const { return kTokenHeaderBytes + count_ * bytes_per_token(format_); }

    // Reads tokens [first, first + into.size()). Each must be below `vocab_size`.
    void read(std::uint64_t first, std::span<std::int32_t> into, std::int64_t vocab_size) const;

    // Reads the whole file, block by block.
    void for_each_block(std::int64_t vocab_size, const std::function<void(std::span<const std::int32_t>)>& visit) const;
    // Reads the whole file for nothing but the check of its ids.
    void check_ids(std::int64_t vocab_size) const;

private:
    std::shared_ptr<OpenFiles> files_;
    std::string path_;
    TokenFormat format_ = TokenFormat::gpt2;
    std::uint64_t count_ = 0;
};

// xxh3 of all bytes behind the header: the hash of a shard in its manifest.
std::uint64_t hash_of_tokens(const FileSystem& files, const std::string& path);
