// Reads the bytes of a file or of standard input ("-"), and inflates what gzip, zlib or zstd has compressed (several of
// them one behind the other too, and zeros behind the last one of gzip, as tar pads). The first bytes decide which it
// is, whatever the name; the name does where they are damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

class ByteStream {
public:
    virtual ~ByteStream() = default;
    // Reads up to `count` bytes; 0 at the end. Throws Error io, bad_data where compressed bytes are damaged or cut off,
    // with the place in what has been read.
    std::size_t read(char* into, std::size_t count);
    // Passes over so many bytes. Error(bad_data) where there are not so many.
    virtual void skip(std::uint64_t count);

    virtual bool is_compressed() const { return false; }
    const std::string& name() const { return name_; }

    // Returns how many bytes of the file were used up: fewer than were read where they are compressed.
    virtual std::uint64_t stored() const { return position_; }

protected:
    explicit ByteStream(const std::string& name) : name_(name) {}
    virtual std::size_t take(char* into, std::size_t count) = 0;
    [[noreturn]] void damaged(const std::string& what) const;
    std::string name_;
    std::uint64_t position_ = 0;
};

// Opens a stream. Throws Error: io where it cannot be opened, usage where this build lacks the library.
std::unique_ptr<ByteStream> open_stream(const std::string& name);

// Returns true if a name ends with `suffix`, in upper or lower case; `suffix` is in lower case.
bool has_suffix(std::string_view name, std::string_view suffix);

// Returns the name without .gz or .zst, in upper or lower case.
std::string uncompressed_name(const std::string& name);
