// Text to token ids and back.
//
// A Tokenizer is a vocabulary: the bytes of every id, the end-of-text token that separates documents, and a name and
// hash by which data, checkpoints and programs recognise that they talk about the same ids.
//
//   Tokenizer tokenizer = Tokenizer::load("data/local");        // a prepared corpus, or a file of a known format
//   std::string sample = tokenizer.decode(ids, count);          // the bytes, which need not be valid UTF-8
//   Encoder encoder(tokenizer);                                 // one per thread
//   encoder.encode(document, ids);
//
// Must hold: decode(encode(x)) == x for every byte string x; ids are below vocab_size(); the hash depends on nothing
// but the vocabulary, whatever file it was loaded from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

class Tokenizer {
public:
    // Every byte is its own id; 256 is end-of-text; vocabulary 257.
    static Tokenizer bytes();
    // From the specification of the command line ("bytes"), a file of a known format, or a folder that holds one (a
    // prepared corpus, a checkpoint). Throws Error: io when unreadable, bad_data (file, offset) when malformed.
    static Tokenizer load(const std::string& specification);

    std::uint32_t vocab_size() const { return static_cast<std::uint32_t>(tokens_.size()); }
    std::uint32_t end_of_text() const { return end_of_text_; }
    const std::string& name() const { return name_; }
    // xxh3 of the end-of-text id and the bytes of every token in the order of ids: the identity of the vocabulary.
    std::uint64_t hash() const { return hash_; }
    std::string_view token(std::uint32_t id) const { return tokens_[id]; }

    // Appends the bytes of one id. An id outside the vocabulary (a padded row, for instance) throws bad_data.
    void decode_one(std::uint32_t id, std::string& out) const;
    template <class Id>
    std::string decode(const Id* ids, std::size_t count) const {
        std::string out;
        for (std::size_t i = 0; i < count; i++) decode_one(static_cast<std::uint32_t>(ids[i]), out);
        return out;
    }

    // Writes the files other programs read (llm.c's tokenizer.bin) into an existing folder; returns their names.
    std::vector<std::string> save(const std::string& folder) const;

private:
    friend class TokenizerBuilder;
    Tokenizer() = default;
    void finish();   // computes the hash once the vocabulary is complete

    std::string name_;
    std::vector<std::string> tokens_;
    std::uint32_t end_of_text_ = 0;
    std::uint64_t hash_ = 0;
};

// Encodes documents with one tokenizer, which must outlive it. Not for concurrent use: every thread has its own.
class Encoder {
public:
    explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    // Appends the ids of `document` to `ids`; text that spells a special token is ordinary text.
    void encode(std::string_view document, std::vector<std::uint32_t>& ids);

private:
    const Tokenizer& tokenizer_;
};

// llm.c's tokenizer file: 256 little-endian int32 (magic 20240328, version 2, vocabulary size, end-of-text id), then
// per token a length byte and the bytes. Tokens longer than 255 bytes cannot be written.
inline constexpr std::int32_t llmc_tokenizer_magic = 20240328;
inline constexpr std::int32_t llmc_tokenizer_version = 2;
