#include "llmc/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/io/hash.h"
#include "llmc/io/lfs_pointer.h"

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they lie in memory");

namespace {

struct FormatRow {
    TokenFormat format;
    std::int32_t magic, version;
};
constexpr std::array<FormatRow, 2> kFormats{{
    {TokenFormat::gpt2, 20240520, 1},
    {TokenFormat::llama3, 20240801, 7},
}};

const char* const kPrepareAgain = "Prepare it again with the tokenize tool, or pass another file.";

[[noreturn]] void bad_file(const std::string& path, std::uint64_t byte, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": byte ", byte, ": ", what), kPrepareAgain);
}

// Widens raw tokens to int32 and finds the first one out of range; returns its position, or ids.size().
template <class Raw>
std::size_t widen(std::span<const Raw> raw, std::span<std::int32_t> ids, std::int64_t vocab_size) {
    Raw largest = 0;
    for (std::size_t i = 0; i < raw.size(); i++) {
        ids[i] = static_cast<std::int32_t>(raw[i]);
        largest = std::max(largest, raw[i]);
    }
    if (largest < vocab_size) return raw.size();
    auto is_bad = [&](Raw id) { return id >= vocab_size; };
    return static_cast<std::size_t>(std::find_if(raw.begin(), raw.end(), is_bad) - raw.begin());
}

}   // namespace

std::array<std::int32_t, 256> token_file_header(TokenFormat format, std::uint64_t count) {
    auto row = std::find_if(kFormats.begin(), kFormats.end(), [&](const FormatRow& r) { return r.format == format; });
    std::array<std::int32_t, 256> header{};
    header[0] = row->magic;
    header[1] = row->version;
    header[2] = static_cast<std::int32_t>(count);
    return header;
}

TokenFile::TokenFile(const FileSystem& files, const std::string& path)
    : TokenFile(std::make_shared<OpenFiles>(files, 1), path) {}

TokenFile::TokenFile(std::shared_ptr<OpenFiles> files, const std::string& path)
    : files_(std::move(files)), path_(path) {
    const std::shared_ptr<const File> file = files_->open(path);
    const std::uint64_t size = file->size();
    if (size < kTokenHeaderBytes) {
        refuse_lfs_pointer(*file);
        bad_file(path, size, text("the file ends inside its header, expected ", kTokenHeaderBytes, " bytes of header"));
    }
    std::array<std::int32_t, 256> header;
    file->read_at(0, std::as_writable_bytes(std::span(header)));

    auto row = std::find_if(kFormats.begin(), kFormats.end(), [&](const FormatRow& r) { return r.magic == header[0]; });
    if (row == kFormats.end()) {
        bad_file(path, 0,
                 text("magic number ", header[0],
                      ", expected 20240520 (GPT-2 tokens, uint16) or 20240801 "
                      "(Llama-3 tokens, uint32)"));
    }
    if (header[1] != row->version) bad_file(path, 4, text("version ", header[1], ", expected ", row->version));
    if (header[2] <= 0) bad_file(path, 8, text("token count ", header[2], ", expected 1 to 2147483647"));
    format_ = row->format;
    count_ = static_cast<std::uint64_t>(header[2]);
    if (size != bytes()) {
        bad_file(path, 8,
                 text("token count ", count_, " with ", bytes_per_token(format_), " bytes each makes a file of ",
                      bytes(), " bytes, found ", size, " bytes"));
    }
}

void TokenFile::read(std::uint64_t first, std::span<std::int32_t> into, std::int64_t vocab_size) const {
    ENSURE(first + into.size() <= count_, path(), ": tokens ", first, " to ", first + into.size(), " of ", count_);
    const std::uint64_t offset = kTokenHeaderBytes + first * bytes_per_token(format_);
    const std::shared_ptr<const File> file = files_->open(path_);
    std::size_t bad;
    std::int64_t found = 0;
    auto read_raw = [&]<class Raw>(std::vector<Raw> raw) {
        file->read_at(offset, std::as_writable_bytes(std::span(raw)));
        bad = widen<Raw>(raw, into, vocab_size);
        if (bad < into.size()) found = raw[bad];
    };
    if (format_ == TokenFormat::gpt2) {
        read_raw(std::vector<std::uint16_t>(into.size()));
    } else {
        read_raw(std::vector<std::uint32_t>(into.size()));
    }
    if (bad == into.size()) return;
    throw Error(ErrorKind::bad_data,
                text(path(), ": byte ", offset + bad * bytes_per_token(format_), ": token ", first + bad, " has id ",
                     found, ", expected 0 to ", vocab_size - 1),
                "The file was made with another tokenizer than the model's: prepare it again, or set --vocab-size.");
}

void TokenFile::for_each_block(std::int64_t vocab_size,
                               const std::function<void(std::span<const std::int32_t>)>& visit) const {
    std::vector<std::int32_t> block;
    for (std::uint64_t first = 0; first < count_; first += block.size()) {
        block.resize(std::min<std::uint64_t>(1 << 20, count_ - first));
        read(first, block, vocab_size);
        visit(block);
    }
}

void TokenFile::check_ids(std::int64_t vocab_size) const {
    if (format_ == TokenFormat::gpt2 && vocab_size > 65535) return;   // every uint16 is a valid id
    for_each_block(vocab_size, [](std::span<const std::int32_t>) {});
}

std::uint64_t hash_of_tokens(const FileSystem& files, const std::string& path) {
    const auto file = files.open(path);
    Hash64 hash;
    std::vector<std::byte> block;
    for (std::uint64_t at = kTokenHeaderBytes; at < file->size(); at += block.size()) {
        block.resize(std::min<std::uint64_t>(1 << 20, file->size() - at));
        file->read_at(at, block);
        hash.update(block.data(), block.size());
    }
    return hash.digest();
}
