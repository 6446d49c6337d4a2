#include "llmc/data/corpus/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t write_buffer_bytes = 1 << 20;

[[noreturn]] void write_failed(const std::string& path) {
    bool full = errno == ENOSPC || errno == EDQUOT;
    throw Error(ErrorKind::io, text("cannot write ", path, ": ", std::strerror(errno)),
                full ? "Free some space or give another --output." : "");
}

void write_all(int file, const void* data, std::size_t bytes, const std::string& path) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        ssize_t written = ::write(file, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) write_failed(path);
        at += written;
        bytes -= static_cast<std::size_t>(written);
    }
}

// Returns the hash of the first `bytes` behind the header; none where the file has fewer, or more though it is `whole`.
std::optional<Hash64> hash_of_first(const std::string& path, std::uint64_t bytes, bool whole) {
    if (!real_files().exists(path)) return std::nullopt;
    const auto file = real_files().open(path);
    const std::uint64_t end = kTokenHeaderBytes + bytes;
    if (file->size() < end || (whole && file->size() > end)) return std::nullopt;
    Hash64 hash;
    std::vector<std::byte> block;
    for (std::uint64_t at = kTokenHeaderBytes; at < end; at += block.size()) {
        block.resize(std::min<std::uint64_t>(write_buffer_bytes, end - at));
        file->read_at(at, block);
        hash.update(block.data(), block.size());
    }
    return hash;
}

}   // namespace

struct ShardWriter::OpenShard {
    std::string path, temporary;
    int file = -1;
    std::uint64_t tokens = 0;
    std::vector<unsigned char> buffer;
    Hash64 hash;
};

ShardWriter::ShardWriter(Options options) : options_(std::move(options)) {
    if (options_.shard_tokens == 0 || options_.shard_tokens > kMaxFileTokens) {
        throw Error(ErrorKind::usage, text("a shard of ", options_.shard_tokens, " tokens"),
                    text("Give 1 to ", kMaxFileTokens, " tokens."));
    }
}

ShardWriter::~ShardWriter() {
    if (!open_) return;
    ::close(open_->file);
    if (!keeps_) ::unlink(open_->temporary.c_str());
}

std::string ShardWriter::path_of(std::size_t number) const {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%06zu", number);
    const std::string prefix = options_.name.empty() ? "" : options_.name + "_";
    return (fs::path(options_.folder) / (prefix + options_.split + "_" + digits + ".bin")).string();
}

void ShardWriter::open_shard(bool goes_on) {
    auto shard = std::make_unique<OpenShard>();
    shard->path = path_of(shards_.size());
    shard->temporary = shard->path + ".part";
    shard->file = ::open(shard->temporary.c_str(), O_WRONLY | (goes_on ? 0 : O_CREAT | O_TRUNC) | O_CLOEXEC, 0644);
    if (shard->file < 0) write_failed(shard->temporary);
    shard->buffer.reserve(write_buffer_bytes + sizeof(std::uint32_t));
    open_ = std::move(shard);
    if (goes_on) return;
    auto header = token_file_header(options_.format, 0);   // the count is filled in when the shard is complete
    write_all(open_->file, header.data(), kTokenHeaderBytes, open_->temporary);
}

void ShardWriter::append(const std::uint32_t* ids, std::size_t count) {
    while (count > 0) {
        if (!open_) open_shard();
        std::size_t room = write_buffer_bytes / bytes_per_token(options_.format) -
                           open_->buffer.size() / bytes_per_token(options_.format);
        std::size_t n = std::min<std::uint64_t>({count, room, options_.shard_tokens - open_->tokens});
        std::size_t at = open_->buffer.size();
        open_->buffer.resize(at + n * bytes_per_token(options_.format));
        if (options_.format == TokenFormat::gpt2) {
            for (std::size_t i = 0; i < n; i++) {
                std::uint16_t id = static_cast<std::uint16_t>(ids[i]);
                std::memcpy(open_->buffer.data() + at + i * sizeof id, &id, sizeof id);
            }
        } else {
            std::memcpy(open_->buffer.data() + at, ids, n * sizeof(std::uint32_t));
        }
        open_->tokens += n;
        total_tokens_ += n;
        ids += n;
        count -= n;
        if (open_->buffer.size() >= write_buffer_bytes) flush();
        if (open_->tokens == options_.shard_tokens) close_shard();
    }
}

void ShardWriter::flush() {
    open_->hash.update(open_->buffer.data(), open_->buffer.size());
    write_all(open_->file, open_->buffer.data(), open_->buffer.size(), open_->temporary);
    open_->buffer.clear();
}

ShardWriter::OpenTokens ShardWriter::save_point() {
    keeps_ = true;
    if (!open_) return {};
    flush();
    if (::fsync(open_->file) != 0) write_failed(open_->temporary);
    return {open_->tokens, open_->hash.digest()};
}

std::string ShardWriter::resume(const std::vector<ShardInfo>& shards, OpenTokens open) {
    const std::uint64_t token_bytes = bytes_per_token(options_.format);
    for (std::size_t i = 0; i < shards.size(); i++) {
        const std::string path = path_of(i);
        const std::optional<Hash64> hash = hash_of_first(path, shards[i].tokens * token_bytes, true);
        if (!hash || hash->digest() != shards[i].hash || !has_header(path, shards[i].tokens)) return path;
    }
    const std::string open_path = path_of(shards.size()), part = open_path + ".part";
    std::error_code problem;
    const bool was_completed = fs::exists(open_path, problem);   // after the state was saved
    std::optional<Hash64> hash_of_open;
    if (open.count > 0) {
        const std::string path = was_completed ? open_path : part;
        hash_of_open = hash_of_first(path, open.count * token_bytes, false);
        if (!hash_of_open || hash_of_open->digest() != open.hash) return path;
    }
    keeps_ = true;
    shards_ = shards;
    for (const ShardInfo& shard : shards) total_tokens_ += shard.tokens;
    if (open.count == 0) return "";
    if (was_completed) fs::rename(open_path, part);
    fs::resize_file(part, kTokenHeaderBytes + open.count * token_bytes);
    open_shard(true);
    open_->tokens = open.count;
    open_->hash = std::move(*hash_of_open);
    total_tokens_ += open.count;
    if (::lseek(open_->file, 0, SEEK_END) < 0) write_failed(part);
    return "";
}

bool ShardWriter::has_header(const std::string& path, std::uint64_t tokens) const {
    const auto header = token_file_header(options_.format, tokens);
    std::array<std::byte, kTokenHeaderBytes> found;
    real_files().open(path)->read_at(0, found);
    return std::memcmp(found.data(), header.data(), found.size()) == 0;
}

void ShardWriter::close_shard() {
    flush();
    auto header = token_file_header(options_.format, open_->tokens);
    if (::pwrite(open_->file, header.data(), kTokenHeaderBytes, 0) != static_cast<ssize_t>(kTokenHeaderBytes) ||
        ::fsync(open_->file) != 0 || ::rename(open_->temporary.c_str(), open_->path.c_str()) != 0) {
        write_failed(open_->path);
    }
    ::close(open_->file);
    shards_.push_back({fs::path(open_->path).filename().string(), options_.split, open_->tokens, open_->hash.digest()});
    open_.reset();
}

void ShardWriter::finish() {
    if (open_) close_shard();
}
