// Text to token ids and back.
//
// A Tokenizer is a vocabulary (the bytes of every id, which of them are special, the one that separates documents) and
// the rules by which text becomes ids: how it is split into pieces, and which tokens join.
//
//   Tokenizer tokenizer = Tokenizer::load("data/local");        // a prepared corpus, or a file of a known format
//   std::string sample = tokenizer.decode(ids, count);          // the bytes, which need not be valid UTF-8
//   Encoder encoder(tokenizer);                                 // one per thread
//   encoder.encode(document, ids);
//
// Must hold: decode(encode(x)) == x for every byte string x (but for InvalidUtf8::replace, normal form C, normalizers
// and steps that change the text, and bytes that have no token); ids are those of tiktoken for its vocabularies; the
// hash depends on nothing but the bytes of the ids, whatever file they were loaded from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/tokenizer/bpe/bpe.h"
#include "llmc/tokenizer/bpe/pieces.h"
#include "llmc/tokenizer/split/split.h"

// The ids that begin, end and pad texts, as the files of a model say (llmc/tokenizer/files/special_ids.cpp).
struct SpecialIds {
    std::optional<std::uint32_t> bos, pad;
    std::vector<std::uint32_t> eos;   // each ends what a model writes; empty: no file says it
    bool operator==(const SpecialIds&) const = default;
};

// How an added token is found in text, as Hugging Face's tokenizers finds it.
struct AddedTokenRules {
    bool lstrip = false, rstrip = false;   // takes the white space before it, behind it, along
    bool single_word = false;              // only where no character of a word stands beside it
    bool normalized = false;               // in the normal form of the text, between tokens that are found as they are
    bool outside = false;   // the model does not know it. Set only if `spelled` is not empty (TokenizerData)
    bool operator==(const AddedTokenRules&) const = default;
};

// Content of a tokenizer's files, whatever their format.
struct TokenizerData {
    std::string name;
    std::vector<std::string> tokens;   // bytes of every id; empty: an id that is not used
    // Characters of every id as merges and added tokens have them. If empty, tokens are spelled by their bytes. Not
    // empty for vocabularies of characters with tokens for bytes (SentencePiece's byte_fallback), where "▁" is decoded
    // as a space.
    std::vector<std::string> spelled;
    std::vector<std::uint8_t> is_special;   // per id: an added token, 1 special, 2 not: text always becomes that token
    std::map<std::uint32_t, AddedTokenRules> rules;   // rules of the added tokens that have some
    std::uint32_t end_of_text = 0;                    // the token in front of every document
    bool can_encode = true;                           // false: a bare list of tokens, fit to decode only
    SplitPattern pattern;
    std::vector<BpeMerge> merges;
    bool merge_by_rank = false;            // tiktoken's rule in place of `merges`
    bool whole_piece_first = false;        // a piece that is a token becomes that token whatever the merges say
    std::optional<UnknownByte> unknown;    // none: a byte without a token is left out
    std::string pre_tokenizer;             // tokenizer.json's, for SplitRule::steps, and where tokens are spelled
    std::string decoder;                   // tokenizer.json's, where tokens are spelled
    std::size_t spaces_before = 0;         // decoding drops up to so many spaces in front of a text
    std::string post_processor = "null";   // tokenizer.json's, which adds ids around a text
    std::vector<std::uint32_t> front;      // the ids that it puts in front of a text (text_ids.h)
    std::vector<std::uint32_t> back;       // the ids that it puts behind it
    SpecialIds special;                    // a Tokenizer's always has an eos
    std::vector<std::pair<std::string, std::string>> kept;   // names and contents of a model's files on its texts
    std::string unknown_eos;   // says which file names an end of texts that no token is; for a warning. Empty: none

    bool by_characters() const { return !spelled.empty(); }
    const std::string& spelling(std::uint32_t id) const { return by_characters() ? spelled[id] : tokens[id]; }
    bool has(std::uint64_t id) const { return id < tokens.size() && !spelling(static_cast<std::uint32_t>(id)).empty(); }
    // Returns the token that files call by this name, which is how they spell it.
    std::optional<std::uint32_t> named(std::string_view token) const;
    AddedTokenRules rules_of(std::uint32_t id) const {
        const auto found = rules.find(id);
        return found == rules.end() ? AddedTokenRules{} : found->second;
    }
};

class Tokenizer {
public:
    explicit Tokenizer(TokenizerData data);   // checked: ids in range, every byte has a token or there are merges by
                                              // list (tokenizer.json may leave some out); else Error bad_data

    // Returns the tokenizer of bytes: every byte is its own id; 256 is end-of-text; vocabulary 257.
    static Tokenizer bytes();
    // Loads "bytes", a file of a known format (files.h), or a folder that holds one (a prepared corpus, a checkpoint).
    // Throws Error: io when unreadable, bad_data (file, offset) when malformed.
    static Tokenizer load(const std::string& specification);
    // Returns the tokenizer's file in a folder; empty: there is none.
    static std::string file_in(const FileSystem& files, const std::string& folder);
    // Returns the file that load() reads for a file or a folder.
    static std::string file_of(const std::string& specification);

    std::uint32_t vocab_size() const { return static_cast<std::uint32_t>(data().tokens.size()); }
    std::uint32_t end_of_text() const { return data().end_of_text; }
    const SpecialIds& special() const { return data().special; }
    // Returns true if the id ends what a model writes: any eos, or the token in front of the next document.
    bool ends_text(std::uint32_t id) const;
    const std::string& name() const { return data().name; }
    const TokenizerData& data() const { return state_->data; }
    // Returns the xxh3 of the end-of-text id and the bytes of every token in the order of ids: the identity of the
    // vocabulary.
    std::uint64_t hash() const { return state_->hash; }
    // Returns the xxh3 of all else by which text becomes ids: added tokens, splitting and merges.
    std::uint64_t hash_of_rules() const;

    // Returns the bytes of text that each id stands for: none of special tokens and of the one between documents.
    std::vector<std::uint32_t> text_bytes() const;

    // Appends the bytes of one id. An id outside the vocabulary (a padded row, for instance) throws bad_data.
    void decode_one(std::uint32_t id, std::string& out) const;
    template <class Id>
    std::string decode(const Id* ids, std::size_t count) const {
        std::string out;
        for (std::size_t i = 0; i < count; i++) decode_one(static_cast<std::uint32_t>(ids[i]), out);
        return out;
    }

    // Writes the files other programs read into an existing folder: llm.c's tokenizer.bin, when it can encode Hugging
    // Face's tokenizer.json, and what a model's files have said of its texts. Returns their names. Files of these names
    // that it does not write are removed: they are another tokenizer's.
    std::vector<std::string> save(const std::string& folder) const;

    // Returns true if every byte of a text becomes one token.
    bool single_bytes() const;

    // Returns the merges, built on first use (a trainer that only decodes never pays for them). Safe from several
    // threads.
    const BpeModel& model() const;

private:
    struct State {
        TokenizerData data;
        std::uint64_t hash = 0;
        mutable std::unique_ptr<const BpeModel> model;
    };
    std::shared_ptr<const State> state_;   // copies of a tokenizer share it
};

// Decodes documents one behind the other: begins at the first id, and behind each end of text, without the spaces that
// the tokenizer's decoder drops in front of a text (the one that Llama 2's normalizer has put there).
class DocumentDecoder {
public:
    explicit DocumentDecoder(const Tokenizer& tokenizer)
        : tokenizer_(tokenizer), to_drop_(tokenizer.data().spaces_before) {}

    // Appends the bytes of ids that follow those before.
    template <class Id>
    void decode(const Id* ids, std::size_t count, std::string& out) {
        for (std::size_t i = 0; i < count; i++) decode_one(static_cast<std::uint32_t>(ids[i]), out);
    }

private:
    void decode_one(std::uint32_t id, std::string& out);

    Tokenizer tokenizer_;
    std::size_t to_drop_;
};

// Treatment of text that spells a special token, such as <|endoftext|>. (Text that spells an added token that is not
// special always becomes the token.)
enum class SpecialText {
    ordinary,   // is text like any other (tiktoken's encode_ordinary)
    encode,     // becomes that token (allowed_special="all")
    refuse,     // is an error, bad_data (tiktoken's default)
};

// Treatment of bytes that are not UTF-8.
enum class InvalidUtf8 {
    tiktoken,   // as tiktoken's encode for bytes: from there on, the rest of the document is one piece; where steps
                // split a text (SplitRule::steps) or pieces begin as characters, which tiktoken does not have, as
                // `split`
    split,      // each run of such bytes is a piece of its own
    replace,    // each ill-formed sequence becomes U+FFFD, as Python's decode(errors="replace"); not reversible
    refuse,     // is an error, bad_data
};

struct EncodeOptions {
    SpecialText special = SpecialText::ordinary;
    InvalidUtf8 invalid = InvalidUtf8::tiktoken;
};

// Encodes with one tokenizer. Remembers pieces it has met, so it should live long; not for use by two threads at once.
class Encoder {
public:
    explicit Encoder(const Tokenizer& tokenizer, EncodeOptions options = {});
    ~Encoder();
    Encoder(Encoder&&) noexcept;

    // Appends the ids of a document of less than 4 GiB (or of a part that ends at a safe cut).
    void encode(std::string_view document, std::vector<std::uint32_t>& ids);

    // Returns the counts of all pieces so far.
    PieceCounts counts() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
