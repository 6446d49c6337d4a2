// Reads and writes safetensors files: named tensors in the format of Hugging Face.
//
//   bytes        what
//   0 .. 7       n: length of the header, uint64, little-endian, at most 100 000 000
//   8 .. 7+n     header: JSON, begins with '{', may end in spaces:
//                  {"__metadata__": {"key": "text", ...},            optional, or null
//                   "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//                offsets count bytes from the end of the header. A shape has at most 16 sizes, and all of the header
//                at most 2^21 values (a tensor has 6 and its sizes): limits of ours, which hold while it is parsed
//   8+n ..       data: tensors without gaps or overlaps up to the end of the file, row-major, little-endian
//
// (https://github.com/huggingface/safetensors, format section.) Opening a file checks every one of these statements; a
// file that breaks one throws Error(bad_data) naming the file, the byte and what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/io/file.h"

// Every type of the format. Types from C64 on can only be skipped or read as bytes; elements from F6_E2M3 on are
// smaller than a byte.
enum class TensorType : std::uint8_t {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL,
    C64,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    F6_E2M3,
    F6_E3M2,
    F4
};

std::size_t bytes_of(TensorType type);   // bytes of one element, 0 if smaller than a byte
const char* name_of(TensorType type);
bool is_real(TensorType type);   // true if double holds its values: F64, F32, F16 or BF16

using TensorMetadata = std::map<std::string, std::string>;

struct TensorEntry {
    std::string name;
    TensorType type = TensorType::F32;
    std::vector<std::int64_t> shape;   // empty: a scalar
    std::uint64_t offset = 0;          // position of its first byte in the file

    std::int64_t elements() const;
    std::uint64_t bytes() const;
};

class SafetensorsFile {
public:
    SafetensorsFile(const FileSystem& files, const std::string& path);

    const std::string& path() const { return file_->path(); }
    const std::vector<TensorEntry>& entries() const { return entries_; }   // in the order of the data
    const TensorMetadata& metadata() const { return metadata_; }

    const TensorEntry* find(const std::string& name) const;    // null if there is none
    const TensorEntry& entry(const std::string& name) const;   // throws Error(bad_data) if there is none

    // Reads raw bytes of a tensor, from its byte `first` on.
    void read(const TensorEntry& entry, std::uint64_t first, std::span<std::byte> into) const;

    // Reads a whole tensor as T (double, float or int64), from any type whose values T holds: double from F64, F32, F16
    // and BF16; float from the last three; int64 from every integer type but U64. Throws Error(bad_data) for other
    // types.
    template <class T>
    std::vector<T> read_as(const TensorEntry& entry) const;
    template <class T>
    std::vector<T> read_as(const std::string& name) const {
        return read_as<T>(entry(name));
    }

private:
    std::unique_ptr<File> file_;
    std::vector<TensorEntry> entries_;
    std::map<std::string, std::size_t> index_;   // by name, the index into entries_
    TensorMetadata metadata_;
};

// Writes a file from front to back: the header at once, then the data of each entry in turn, in pieces of any size. The
// file's bytes depend only on its content, so equal states make equal files.
class SafetensorsWriter {
public:
    // Reads only name, type and shape of the entries.
    SafetensorsWriter(std::unique_ptr<File> file, const std::vector<TensorEntry>& entries,
                      const TensorMetadata& metadata);

    void write(std::span<const std::byte> bytes);
    template <class T>
    void write_values(std::span<const T> values) {
        write(std::as_bytes(values));
    }
    void finish();   // checks that all data was written, and syncs

private:
    std::unique_ptr<File> file_;
    std::uint64_t expected_ = 0, written_ = 0;   // bytes of data
};
