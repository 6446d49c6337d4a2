#include "llmc/data/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "llmc/base/error.h"
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
    ::unlink(open_->temporary.c_str());
}

void ShardWriter::open_shard() {
    char number[16];
    std::snprintf(number, sizeof number, "%06zu", shards_.size());
    std::string prefix = options_.name.empty() ? "" : options_.name + "_";
    auto shard = std::make_unique<OpenShard>();
    shard->path = (fs::path(options_.folder) / (prefix + options_.split + "_" + number + ".bin")).string();
    shard->temporary = shard->path + ".part";
    shard->file = ::open(shard->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (shard->file < 0) write_failed(shard->temporary);
    shard->buffer.reserve(write_buffer_bytes + sizeof(std::uint32_t));
    open_ = std::move(shard);
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
