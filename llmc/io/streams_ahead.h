// Inflates several compressed files at once, for who reads files one after the other.
//
// Each compressed file, the one that is read and those behind it, has a thread that inflates it until it is so many
// bytes of text ahead; of a longer file the rest is inflated in its turn, for order is kept and nothing is put aside on
// a disk. What is read, and the errors, are those of open_stream(), where only the place of damage depends on how much
// is read at once. Memory is at most `bytes` per thread, and what inflating takes: up to 128 MiB for zstd --long=27.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llmc/io/byte_stream.h"

class StreamsAhead {
public:
    static constexpr int most_threads = 8;   // more than one reader takes from

    // With less than two threads files are inflated where they are read.
    StreamsAhead(std::vector<std::string> names, int threads, std::size_t bytes = std::size_t{16} << 20);

    // Opens a file, behind those that were opened before. Throws Error as open_stream(); of a compressed file its first
    // read() may do so.
    std::unique_ptr<ByteStream> open(std::size_t file);

private:
    bool is_inflated_ahead(const std::string& name) const;
    std::unique_ptr<ByteStream> inflated_ahead(const std::string& name) const;

    std::vector<std::string> names_;
    std::size_t threads_, bytes_;
    std::size_t next_ = 0;                                       // the first file that was not looked at
    std::map<std::size_t, std::unique_ptr<ByteStream>> begun_;   // by file, not opened yet
};
