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
    shard->file = ::open(shard->temporary.c_str(), (goes_on ? O_RDWR : O_WRONLY | O_CREAT | O_TRUNC) | O_CLOEXEC, 0644);
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

std::uint64_t ShardWriter::save_point() {
    keeps_ = true;
    if (!open_) return 0;
    flush();
    if (::fsync(open_->file) != 0) write_failed(open_->temporary);
    return open_->tokens;
}

bool ShardWriter::resume(const std::vector<ShardInfo>& shards, std::uint64_t open_tokens) {
    const std::uint64_t token_bytes = bytes_per_token(options_.format);
    std::error_code problem;
    auto bytes_of_file = [&](const std::string& path) {
        const std::uint64_t size = fs::file_size(path, problem);
        return problem ? 0 : size;
    };
    for (std::size_t i = 0; i < shards.size(); i++) {
        if (bytes_of_file(path_of(i)) != kTokenHeaderBytes + shards[i].tokens * token_bytes) return false;
    }
    const std::string open_path = path_of(shards.size()), part = open_path + ".part";
    const std::uint64_t bytes = kTokenHeaderBytes + open_tokens * token_bytes;
    // it may have been completed since
    const bool was_completed = fs::exists(open_path, problem);
    if (open_tokens > 0 && bytes_of_file(was_completed ? open_path : part) < bytes) return false;
    keeps_ = true;
    shards_ = shards;
    for (const ShardInfo& shard : shards) total_tokens_ += shard.tokens;
    if (open_tokens == 0) return true;
    if (was_completed) fs::rename(open_path, part);
    fs::resize_file(part, bytes);
    open_shard(true);
    open_->tokens = open_tokens;
    total_tokens_ += open_tokens;
    if (::lseek(open_->file, static_cast<off_t>(kTokenHeaderBytes), SEEK_SET) < 0) write_failed(part);
    std::vector<char> read(write_buffer_bytes);
    for (std::uint64_t left = bytes - kTokenHeaderBytes; left > 0;) {   // which leaves the file at its end
        const ssize_t taken = ::read(open_->file, read.data(), std::min<std::uint64_t>(left, read.size()));
        if (taken < 0 && errno == EINTR) continue;
        if (taken <= 0) throw Error(ErrorKind::io, text("cannot read ", part, ": ", std::strerror(errno)));
        open_->hash.update(read.data(), static_cast<std::size_t>(taken));
        left -= static_cast<std::uint64_t>(taken);
    }
    return true;
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
