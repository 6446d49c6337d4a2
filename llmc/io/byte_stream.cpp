#include "llmc/io/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "llmc/base/error.h"
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

    std::size_t take(char* into, std::size_t count) override {
        while (true) {
            const ssize_t taken = ::read(descriptor_, into, count);
            if (taken >= 0) return static_cast<std::size_t>(taken);
            if (errno == EINTR) continue;
            throw Error(ErrorKind::io, text(name_, ": offset ", position_, ": cannot read: ", std::strerror(errno)));
        }
    }

    void skip(std::uint64_t count) override {
        if (::lseek(descriptor_, static_cast<off_t>(count), SEEK_CUR) < 0) return ByteStream::skip(count);
        position_ += count;
    }

private:
    int descriptor_;
};

// Holds compressed bytes, taken from the file as they are used up; base of both kinds of compressed streams.
class CompressedStream : public ByteStream {
public:
    std::uint64_t stored() const override { return file_.stored() - (held_ - used_); }

protected:
    explicit CompressedStream(const std::string& name) : ByteStream(name), file_(name), bytes_(1 << 16) {}
    // Makes sure that compressed bytes are at hand. False at the end of the file.
    bool more() {
        if (used_ < held_) return true;
        used_ = 0;
        const bool is_beginning = file_.stored() == 0;
        held_ = file_.read(bytes_.data(), bytes_.size());
        if (is_beginning) {
            refuse_lfs_pointer(name_, {bytes_.data(), held_});
            refuse_other_format({bytes_.data(), held_});
        }
        return held_ > 0;
    }
    // Throws Error(bad_data) if the file begins as no file of this kind does.
    void refuse_other_format(std::string_view beginning) const {
        const bool gzip = beginning.starts_with("\x1f\x8b"), zstd = beginning.starts_with("\x28\xb5\x2f\xfd");
        const bool named_gzip = has_suffix(name_, ".gz");
        if (beginning.size() < 4 ||
            (named_gzip ? gzip || !(zstd || is_text(beginning)) : !(gzip || is_text(beginning))))
            return;
        throw Error(ErrorKind::bad_data,
                    text(name_, ": ",
                         gzip   ? "compressed by gzip"
                         : zstd ? "compressed by zstd"
                                : "text that is not compressed",
                         ", although its name ends with ", named_gzip ? ".gz" : ".zst"),
                    "Rename it to what it is.");
    }
    static bool is_text(std::string_view beginning) {
        return std::ranges::all_of(beginning.substr(0, 256),
                                   [](char c) { return c >= ' ' || c == '\n' || c == '\t' || c == '\r'; });
    }

    PlainStream file_;
    std::vector<char> bytes_;
    std::size_t used_ = 0, held_ = 0;
    bool between_ = true;   // between two compressed parts, where the file may end
};

#ifdef USE_ZLIB

class GzipStream : public CompressedStream {
public:
    explicit GzipStream(const std::string& name) : CompressedStream(name) {
        constexpr int gzip_of_any_window = 15 + 16;
        if (inflateInit2(&state_, gzip_of_any_window) != Z_OK) throw Error(ErrorKind::io, text(name, ": no memory"));
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
    explicit ZstdStream(const std::string& name) : CompressedStream(name), state_(ZSTD_createDStream()) {}
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
    if (has_suffix(name, ".gz")) {
#ifdef USE_ZLIB
        return std::make_unique<GzipStream>(name);
#else
        lacking("zlib", "zlib1g-dev");
#endif
    }
    if (has_suffix(name, ".zst")) {
#ifdef USE_ZSTD
        return std::make_unique<ZstdStream>(name);
#else
        lacking("zstd", "libzstd-dev");
#endif
    }
    return std::make_unique<PlainStream>(name);
}
