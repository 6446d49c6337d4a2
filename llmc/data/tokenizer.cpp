#include "llmc/data/tokenizer.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "llmc/base/error.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t llmc_header_words = 256;

std::string read_whole_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(ErrorKind::io, text("cannot open ", path, ": ", std::strerror(errno)));
    std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (file.bad()) throw Error(ErrorKind::io, text("cannot read ", path, ": ", std::strerror(errno)));
    return content;
}

[[noreturn]] void malformed(const std::string& path, std::size_t offset, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": offset ", offset, ": ", what),
                "Make the tokenizer file again, or take it from where it was published.");
}

}   // namespace

// Reads files into tokenizers; a class of its own so that the public one stays small.
class TokenizerBuilder {
public:
    static Tokenizer from_llmc_file(const std::string& path) {
        std::string content = read_whole_file(path);
        std::array<std::int32_t, llmc_header_words> header;
        if (content.size() < sizeof header) {
            malformed(path, content.size(), text("the file ends inside its header of ", sizeof header, " bytes"));
        }
        std::memcpy(header.data(), content.data(), sizeof header);
        if (header[0] != llmc_tokenizer_magic) {
            malformed(path, 0, text("magic number ", header[0], ", expected ", llmc_tokenizer_magic));
        }
        if (header[1] != llmc_tokenizer_version) {
            malformed(path, 4, text("version ", header[1], ", expected ", llmc_tokenizer_version));
        }
        if (header[2] <= 0 || header[3] < 0 || header[3] >= header[2]) {
            malformed(path, 8, text("vocabulary of ", header[2], " tokens with end of text ", header[3]));
        }
        Tokenizer tokenizer;
        tokenizer.name_ = fs::path(path).filename().string();
        tokenizer.end_of_text_ = static_cast<std::uint32_t>(header[3]);
        std::size_t at = sizeof header;
        for (std::int32_t id = 0; id < header[2]; id++) {
            std::size_t length = at < content.size() ? static_cast<unsigned char>(content[at]) : 0;
            if (at >= content.size() || at + 1 + length > content.size()) {
                malformed(path, at, text("the file ends inside token ", id, " of ", header[2]));
            }
            tokenizer.tokens_.push_back(content.substr(at + 1, length));
            at += 1 + length;
        }
        if (at != content.size()) malformed(path, at, text(content.size() - at, " bytes follow the last token"));
        tokenizer.finish();
        return tokenizer;
    }
};

Tokenizer Tokenizer::bytes() {
    Tokenizer tokenizer;
    tokenizer.name_ = "bytes";
    for (int byte = 0; byte < 256; byte++) tokenizer.tokens_.push_back(std::string(1, static_cast<char>(byte)));
    tokenizer.end_of_text_ = 256;
    tokenizer.tokens_.push_back("<|endoftext|>");
    tokenizer.finish();
    return tokenizer;
}

Tokenizer Tokenizer::load(const std::string& specification) {
    if (specification == "bytes") return bytes();
    fs::path path = specification;
    if (fs::is_directory(path)) path /= "tokenizer.bin";
    if (!fs::exists(path)) {
        throw Error(ErrorKind::io, text("no tokenizer at ", path.string()),
                    "Give `bytes`, a tokenizer file, or a folder that holds one.");
    }
    return TokenizerBuilder::from_llmc_file(path.string());
}

void Tokenizer::finish() {
    Hash64 hash;
    hash.update(&end_of_text_, sizeof end_of_text_);
    for (const std::string& bytes : tokens_) {
        std::uint64_t length = bytes.size();
        hash.update(&length, sizeof length);
        hash.update(bytes.data(), bytes.size());
    }
    hash_ = hash.digest();
}

void Tokenizer::decode_one(std::uint32_t id, std::string& out) const {
    if (id >= vocab_size()) {
        throw Error(ErrorKind::bad_data,
                    text("token ", id, " is outside the vocabulary of ", vocab_size(), " of tokenizer ", name_));
    }
    out += tokens_[id];
}

std::vector<std::string> Tokenizer::save(const std::string& folder) const {
    std::string path = (fs::path(folder) / "tokenizer.bin").string();
    std::array<std::int32_t, llmc_header_words> header{};
    header[0] = llmc_tokenizer_magic;
    header[1] = llmc_tokenizer_version;
    header[2] = static_cast<std::int32_t>(vocab_size());
    header[3] = static_cast<std::int32_t>(end_of_text_);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    for (const std::string& bytes : tokens_) {
        file.put(static_cast<char>(bytes.size()));
        file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    file.close();
    if (!file) throw Error(ErrorKind::io, text("cannot write ", path, ": ", std::strerror(errno)));
    return {"tokenizer.bin"};
}

void Encoder::encode(std::string_view document, std::vector<std::uint32_t>& ids) {
    ids.reserve(ids.size() + document.size());
    for (char byte : document) ids.push_back(static_cast<unsigned char>(byte));
}
