#include "llmc/io/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/file.h"
#include "llmc/io/lfs_pointer.h"

#ifdef USE_ZLIB
#include <zlib.h>
#endif
#ifdef USE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

namespace {

class PlainStream : public ByteStream {
public:
    explicit PlainStream(const std::string& name) : ByteStream(name) {
        if (name != "-") refuse_device(name, "", true);
        descriptor_ = name == "-" ? ::dup(STDIN_FILENO) : ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
        if (descriptor_ < 0) throw Error(ErrorKind::io, text("cannot open ", name, ": ", std::strerror(errno)));
    }
    ~PlainStream() override { ::close(descriptor_); }
    PlainStream(const PlainStream&) = delete;
    PlainStream& operator=(const PlainStream&) = delete;

    // Returns the first bytes, all where there are few; for before the first read().
    std::string_view beginning() {
        constexpr std::size_t few = 4096;
        while (beginning_.size() < few) {
            const std::size_t have = beginning_.size();
            beginning_.resize(few);
            const std::size_t taken = take_from_file(beginning_.data() + have, few - have);
            beginning_.resize(have + taken);
            if (taken == 0) break;
        }
        return beginning_;
    }

    std::size_t take(char* into, std::size_t count) override {
        if (beginning_.empty()) return take_from_file(into, count);
        count = std::min(count, beginning_.size());
        beginning_.copy(into, count);
        beginning_.erase(0, count);
        return count;
    }

    void skip(std::uint64_t count) override {
        const std::uint64_t held = std::min<std::uint64_t>(count, beginning_.size());
        beginning_.erase(0, held);
        position_ += held;
        count -= held;
        if (::lseek(descriptor_, static_cast<off_t>(count), SEEK_CUR) < 0) return ByteStream::skip(count);
        position_ += count;
    }

private:
    std::size_t take_from_file(char* into, std::size_t count) const {
        while (true) {
            const ssize_t taken = ::read(descriptor_, into, count);
            if (taken >= 0) return static_cast<std::size_t>(taken);
            if (errno == EINTR) continue;
            throw Error(ErrorKind::io, text(name_, ": offset ", position_, ": cannot read: ", std::strerror(errno)));
        }
    }

    int descriptor_;
    std::string beginning_;   // bytes looked at but not yet taken
};

// Holds compressed bytes, taken from the file as they are used up; base of both kinds of compressed streams.
class CompressedStream : public ByteStream {
public:
    std::uint64_t stored() const override { return file_->stored() - (held_ - used_); }
    bool is_compressed() const override { return true; }

protected:
    explicit CompressedStream(std::unique_ptr<PlainStream> file)
        : ByteStream(file->name()), file_(std::move(file)), bytes_(1 << 16) {}
    // Makes sure that compressed bytes are at hand. False at the end of the file.
    bool more() {
        if (used_ < held_) return true;
        used_ = 0;
        held_ = file_->read(bytes_.data(), bytes_.size());
        return held_ > 0;
    }

    std::unique_ptr<PlainStream> file_;
    std::vector<char> bytes_;
    std::size_t used_ = 0, held_ = 0;
    bool between_ = true;   // between two compressed parts, where the file may end
};

#ifdef USE_ZLIB

// Reads what gzip, or a program that uses zlib alone, has compressed.
class GzipStream : public CompressedStream {
public:
    explicit GzipStream(std::unique_ptr<PlainStream> file) : CompressedStream(std::move(file)) {
        constexpr int gzip_or_zlib_of_any_window = 15 + 32;
        if (inflateInit2(&state_, gzip_or_zlib_of_any_window) != Z_OK) {
            throw Error(ErrorKind::io, text(name_, ": no memory"));
        }
    }
    ~GzipStream() override { inflateEnd(&state_); }
    GzipStream(const GzipStream&) = delete;
    GzipStream& operator=(const GzipStream&) = delete;

    std::size_t take(char* into, std::size_t count) override {
        const uInt room = static_cast<uInt>(std::min<std::size_t>(count, 1 << 30));
        state_.next_out = reinterpret_cast<Bytef*>(into);
        state_.avail_out = room;
        while (state_.avail_out == room) {
            if (between_ && began_) pass_over_padding();
            if (!more()) {
                if (between_) return 0;
                damaged("the file ends within what gzip has compressed");
            }
            if (between_) inflateReset(&state_);
            between_ = false;
            began_ = true;
            state_.next_in = reinterpret_cast<Bytef*>(bytes_.data() + used_);
            state_.avail_in = static_cast<uInt>(held_ - used_);
            const int result = inflate(&state_, Z_NO_FLUSH);
            used_ = held_ - state_.avail_in;
            if (result == Z_STREAM_END) between_ = true;
            if (result != Z_OK && result != Z_STREAM_END) {
                damaged(text("not what gzip has compressed: ", state_.msg == nullptr ? "" : state_.msg));
            }
        }
        return room - state_.avail_out;
    }

private:
    // Passes over the zeros that tar and tapes put behind the last part; anything behind them is an error.
    void pass_over_padding() {
        const std::uint64_t begin = stored();
        while (more() && bytes_[used_] == '\0') used_++;
        if (more() && stored() > begin) damaged(text("something else behind ", stored() - begin, " bytes of padding"));
    }

    z_stream state_{};
    bool began_ = false;   // the first part has begun
};

#endif
#ifdef USE_ZSTD

class ZstdStream : public CompressedStream {
public:
    explicit ZstdStream(std::unique_ptr<PlainStream> file)
        : CompressedStream(std::move(file)), state_(ZSTD_createDStream()) {}
    ~ZstdStream() override { ZSTD_freeDStream(state_); }
    ZstdStream(const ZstdStream&) = delete;
    ZstdStream& operator=(const ZstdStream&) = delete;

    std::size_t take(char* into, std::size_t count) override {
        ZSTD_outBuffer out{into, count, 0};
        while (out.pos == 0) {
            // output that did not fit needs no more input
            if (!more() && (between_ || !pending_)) {
                if (between_) return 0;
                damaged("the file ends within what zstd has compressed");
            }
            ZSTD_inBuffer in{bytes_.data() + used_, held_ - used_, 0};
            const std::size_t result = ZSTD_decompressStream(state_, &out, &in);
            used_ += in.pos;
            if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
                throw Error(ErrorKind::bad_data,
                            text(name_, ": compressed with a window of more than 128 MiB, as zstd --long=31 does"),
                            "Decompress it: zstd -d --long=31 FILE.");
            }
            if (ZSTD_isError(result)) damaged(text("not what zstd has compressed: ", ZSTD_getErrorName(result)));
            between_ = result == 0;
            pending_ = out.pos == out.size;
        }
        return out.pos;
    }

private:
    ZSTD_DStream* state_;
    bool pending_ = false;   // the output was full
};

#endif

bool is_text(std::string_view beginning) {
    return std::ranges::all_of(beginning.substr(0, 256),
                               [](char c) { return c >= ' ' || c == '\n' || c == '\t' || c == '\r'; });
}

// Returns true for the two bytes in front of what zlib has compressed, which may begin a text as well: "x^2".
bool begins_as_zlib(std::string_view beginning) {
    beginning = beginning.substr(0, 256);
    if (beginning.size() < 8 || valid_utf8_prefix(beginning) + 4 > beginning.size()) return false;
    const unsigned first = static_cast<unsigned char>(beginning[0]), second = static_cast<unsigned char>(beginning[1]);
    const bool has_dictionary = (second & 0x20) != 0;
    return (first & 0x0f) == 8 && first >> 4 == 7 && (first * 256 + second) % 31 == 0 && !has_dictionary;
}

enum class Compression { none, gzip, zstd };

// Tells by its first bytes how a file is compressed, and by its name where they are damaged.
Compression compression_of(const std::string& name, std::string_view beginning) {
    if (beginning.starts_with("\x1f\x8b") || begins_as_zlib(beginning)) return Compression::gzip;
    const bool begins_with_skippable_frame =   // as seekable files can, and those of pzstd
        beginning.size() >= 4 && (beginning[0] & 0xf0) == 0x50 && beginning.substr(1, 3) == "\x2a\x4d\x18";
    if (beginning.starts_with("\x28\xb5\x2f\xfd") || begins_with_skippable_frame) return Compression::zstd;
    if (beginning.size() >= 4 && is_text(beginning)) return Compression::none;
    return has_suffix(name, ".gz")    ? Compression::gzip
           : has_suffix(name, ".zst") ? Compression::zstd
                                      : Compression::none;
}

}   // namespace

std::size_t ByteStream::read(char* into, std::size_t count) {
    const std::size_t taken = take(into, count);
    position_ += taken;
    return taken;
}

void ByteStream::skip(std::uint64_t count) {
    std::vector<char> passed(1 << 20);
    while (count > 0) {
        const std::size_t taken = read(passed.data(), std::min<std::uint64_t>(count, passed.size()));
        if (taken == 0) damaged(text("the file ends, expected ", count, " bytes more"));
        count -= taken;
    }
}

void ByteStream::damaged(const std::string& what) const {
    throw Error(ErrorKind::bad_data, text(name_, ": behind ", position_, " bytes of text: ", what),
                "Get or compress the file again.");
}

bool has_suffix(std::string_view name, std::string_view suffix) {
    auto equal = [](char c, char of_suffix) { return (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) == of_suffix; };
    return name.size() >= suffix.size() && std::ranges::equal(name.substr(name.size() - suffix.size()), suffix, equal);
}

std::string uncompressed_name(const std::string& name) {
    for (const std::string_view suffix : {".gz", ".zst"}) {
        if (has_suffix(name, suffix)) return name.substr(0, name.size() - suffix.size());
    }
    return name;
}

std::unique_ptr<ByteStream> open_stream(const std::string& name) {
    [[maybe_unused]] auto lacking = [&](const char* library, const char* package) {
        throw Error(ErrorKind::usage, text(name, ": this build has no ", library, ", which reads such files"),
                    text("Install ", package, " and build again, or decompress the file."));
    };
    auto file = std::make_unique<PlainStream>(name);
    const std::string_view beginning = file->beginning();
    switch (compression_of(name, beginning)) {
        case Compression::gzip:
#ifdef USE_ZLIB
            return std::make_unique<GzipStream>(std::move(file));
#else
            lacking("zlib", "zlib1g-dev");
            break;
#endif
        case Compression::zstd:
#ifdef USE_ZSTD
            return std::make_unique<ZstdStream>(std::move(file));
#else
            lacking("zstd", "libzstd-dev");
            break;
#endif
        case Compression::none: break;
    }
    if (uncompressed_name(name) != name) refuse_lfs_pointer(name, beginning);
    return file;
}
