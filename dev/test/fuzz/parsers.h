// Every parser of llmc/io, llmc/tokenizer and llmc/data, as a function of bytes that must return or throw Error,
// whatever the bytes are.
//
// Two programs call them: parsers_fuzz.cpp for libFuzzer (`make fuzz`), and llmc/data/parsers_test.cpp, which mutates
// the seeds for a second in every `make test`. Where a parser accepts its input, what it made must hold together: a
// tokenizer gives back the text it encoded, questions have right answers among their completions.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/data/questions.h"
#include "llmc/data/token_file.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/safetensors.h"
#include "llmc/tokenizer/bpe/bpe_train.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/jsonl.h"
#include "llmc/tokenizer/tokenizer.h"

struct FuzzTarget {
    const char* name;
    void (*parse)(std::string_view);
    std::vector<std::string> seeds;   // well-formed
};

namespace fuzz {

class MemoryFile : public File {
public:
    explicit MemoryFile(std::string_view content) : content_(content) {}
    const std::string& path() const override { return path_; }
    std::uint64_t size() const override { return content_.size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        ENSURE(offset <= content_.size() && into.size() <= content_.size() - offset, "a read behind the end");
        if (!into.empty()) std::memcpy(into.data(), content_.data() + offset, into.size());
    }
    void write(std::span<const std::byte>) override {}
    void sync() override {}

private:
    std::string path_ = "shard.bin";
    std::string_view content_;
};

class OneFile : public ForwardingFiles {
public:
    explicit OneFile(std::string_view content) : ForwardingFiles(real_files()), content_(content) {}
    std::unique_ptr<File> open(const std::string&) const override { return std::make_unique<MemoryFile>(content_); }

private:
    std::string_view content_;
};

// A tokenizer.json of characters with tokens for bytes.
inline std::string sentencepiece_json() {
    std::string json = R"({"added_tokens": [{"id": 0, "content": "</s>", "special": true, "normalized": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
                       {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
                    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": true, "merges": ["_ t", "_t e"], "vocab": {"</s>": 0, "_": 1, "t": 2,
                  "e": 3, "_t": 4, "_te": 5)";
    for (int byte = 0; byte < 256; byte++) {
        constexpr char digits[] = "0123456789ABCDEF";
        json += text(", \"<0x", digits[byte / 16], digits[byte % 16], ">\": ", byte + 6);
    }
    return json + "}}}";
}

inline void use_tokenizer(TokenizerData data) {
    const Tokenizer tokenizer(std::move(data));
    if (!tokenizer.data().can_encode) return;
    const std::string sample = "It's  a\ttest, isn't it?\n 123 caf\xc3\xa9 \xf0\x9f\x98\x80 <|endoftext|> \xff!";
    std::vector<std::uint32_t> ids;
    Encoder(tokenizer).encode(sample, ids);
    const SplitPattern& pattern = tokenizer.data().pattern;
    const bool keeps_all = pattern.rule != SplitRule::steps && pattern.changes.empty() &&
                           !tokenizer.data().by_characters() && missing_bytes(tokenizer.data()).empty();
    ENSURE(!keeps_all || tokenizer.decode(ids.data(), ids.size()) == sample, "decoding does not give the text back");
    parse_huggingface(to_huggingface(tokenizer.data()), "written");
}

inline void shard(std::string_view content) {
    OneFile files(content);
    const TokenFile file(files, "shard.bin");
    ENSURE(file.bytes() == content.size(), "a shard of another size");
    file.check_ids(300);
}

inline void safetensors(std::string_view content) {
    OneFile files(content);
    const SafetensorsFile file(files, "x.safetensors");
    std::uint64_t end = file.entries().empty() ? content.size() : file.entries().front().offset;
    for (const TensorEntry& entry : file.entries()) {
        ENSURE(entry.offset == end && file.find(entry.name) == &entry, "a tensor at another place");
        std::vector<std::byte> bytes(entry.bytes());
        file.read(entry, 0, bytes);
        end += bytes.size();
    }
    ENSURE(end == content.size(), "bytes of no tensor");
}

inline void jsonl(std::string_view content) {
    std::string value;
    const JsonField field = find_json_string(content, "text", value);
    ENSURE(field.error_at <= content.size(), "an error behind the end");
    if (field.error != nullptr)
        throw Error(ErrorKind::bad_data, text("x.jsonl: offset ", field.error_at, ": ", field.error));
}

inline void questions(QuestionSource source, std::string_view content, const char* name) {
    const auto parsed = parse_questions(source, content, name);
    const auto read = parse_question_file(to_question_file(Tokenizer::bytes(), parsed), "written", 257);
    ENSURE(read.size() == parsed.size(), "questions were lost");
}

inline const TokenizerData& small_vocabulary() {
    static const TokenizerData data = [] {
        BpeTrainOptions options;
        options.vocab_size = 270;
        return learn_merges({{" the", 9}, {" then", 5}, {"this", 4}, {" caf\xc3\xa9", 3}}, options, [](const auto&) {});
    }();
    return data;
}

inline std::string gpt2_merges() {
    std::string out = "#version: 0.2\n";
    const TokenizerData& data = small_vocabulary();
    for (const BpeMerge& merge : data.merges) {
        out += to_characters(data.tokens[merge.left]) + " " + to_characters(data.tokens[merge.right]) + "\n";
    }
    return out;
}

// encoder.json: token -> id, by way of tokenizer.json's vocabulary
inline std::string gpt2_ids() {
    const std::string json = to_huggingface(parse_gpt2_merges(gpt2_merges(), "merges"));
    const std::size_t begin = json.find('{', json.find("\"vocab\""));
    return json.substr(begin, json.find("\n  }", begin) + 4 - begin);   // a token may be a brace
}

inline std::string shard_seed(TokenFormat format) {
    const auto header = token_file_header(format, 4);
    std::string out(reinterpret_cast<const char*>(header.data()), sizeof header);
    for (char id = 1; id <= 4; id++) out += id + std::string(bytes_per_token(format) - 1, '\0');
    return out;
}

inline std::string safetensors_seed() {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
        R"("none":{"dtype":"I64","shape":[0],"data_offsets":[8,8]},)"
        R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + "0123456789";
}

inline std::vector<FuzzTarget> targets() {
    const std::string hellaswag = "{\"ctx\": \"A \\u00e4\", \"endings\": [\"b\", \"c\"], \"label\": 1}\n";
    const std::string mmlu = "\"q, \"\"x\"\"\",1,2,3,4,A\nq,1,2,3,4,D\n";
    const std::string manifest =
        R"({"format": "token shards", "version": 1, "tokenizer": {"name": "x", "vocab_size": 9, "end_of_text": 8,)"
        R"( "hash": "0123456789abcdef"}, "token_bytes": 2, "documents": 1, "source_bytes": 5, "shards":)"
        R"( [{"file": "train_000000.bin", "split": "train", "tokens": 9, "hash": "0123456789abcdef"}]})";
    return {
        {"vocab.bpe", [](std::string_view s) { use_tokenizer(parse_gpt2_merges(s, "vocab.bpe")); }, {gpt2_merges()}},
        {"encoder.json",
         [](std::string_view s) {
             static const TokenizerData data = parse_gpt2_merges(gpt2_merges(), "vocab.bpe");
             check_gpt2_ids(data, s, "encoder.json");
         },
         {gpt2_ids()}},
        {"ranks",
         [](std::string_view s) { use_tokenizer(parse_tiktoken_ranks(s, "ranks")); },
         {to_tiktoken_ranks(small_vocabulary())}},
        {"tokenizer.json",
         [](std::string_view s) { use_tokenizer(parse_huggingface(s, "tokenizer.json")); },
         {to_huggingface(small_vocabulary()), sentencepiece_json()}},
        {"tokenizer.bin",
         [](std::string_view s) { use_tokenizer(parse_llmc_tokenizer(s, "tokenizer.bin")); },
         {to_llmc_tokenizer(small_vocabulary())}},
        {"safetensors", safetensors, {safetensors_seed()}},
        {"shard", shard, {shard_seed(TokenFormat::gpt2), shard_seed(TokenFormat::llama3)}},
        {"manifest", [](std::string_view s) { parse_manifest(s, "manifest.json"); }, {manifest}},
        {"jsonl", jsonl, {"{\"id\": [1.5e3, {\"a\": null}], \"text\": \"caf\\u00e9 \\ud83d\\ude00\\n\"}"}},
        {"question-file",
         [](std::string_view s) { parse_question_file(s, "questions.bin", 257); },
         {to_question_file(Tokenizer::bytes(), parse_questions(QuestionSource::hellaswag, hellaswag, "seed")),
          to_question_file(Tokenizer::bytes(), parse_questions(QuestionSource::hellaswag, hellaswag, "seed"),
                           QuestionSource::hellaswag, true)}},
        {"hellaswag", [](std::string_view s) { questions(QuestionSource::hellaswag, s, "h.jsonl"); }, {hellaswag}},
        {"mmlu", [](std::string_view s) { questions(QuestionSource::mmlu, s, "m.csv"); }, {mmlu}},
    };
}

}   // namespace fuzz
