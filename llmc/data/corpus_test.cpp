#include "llmc/data/corpus.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>

#include "llmc/base/error.h"
#include "llmc/data/token_file.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_test.h"
#include "llmc/tokenizer/parallel.h"

namespace {

void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
}

std::vector<std::int32_t> read_tokens(const std::string& folder, const CorpusManifest& manifest, const char* split) {
    std::vector<std::int32_t> tokens;
    for (const ShardInfo& shard : manifest.shards) {
        if (shard.split != split) continue;
        TokenFile file(real_files(), folder + "/" + shard.file);
        CHECK(file.count() == shard.tokens);
        std::size_t first = tokens.size();
        tokens.resize(first + shard.tokens);
        file.read(0, std::span(tokens).subspan(first), manifest.vocab_size);
    }
    return tokens;
}

CorpusManifest prepare(const CorpusOptions& options, const Tokenizer& tokenizer = Tokenizer::bytes()) {
    return prepare_corpus(tokenizer, options, [](const CorpusProgress&) {});
}

std::string document_of(const std::vector<std::int32_t>& tokens) {
    return Tokenizer::bytes().decode(tokens.data(), tokens.size());
}

}   // namespace

TEST_CASE("tokenizer_corpus: documents follow each other behind end-of-text, across shards") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "one");
    write_file(folder / "b.txt", "");
    write_file(folder / "c.txt", "three");
    CorpusOptions options;
    options.input.files = {folder / "a.txt", folder / "b.txt", folder / "c.txt"};
    options.output = folder / "out";
    options.shard_tokens = 4;
    CorpusManifest manifest = prepare(options);
    CHECK(manifest.shards.size() == 3);
    CHECK(manifest.documents == 3);
    CHECK(document_of(read_tokens(options.output, manifest, "train")) ==
          "<|endoftext|>one<|endoftext|><|endoftext|>three");
    CorpusManifest read = read_manifest(real_files(), options.output);
    CHECK(read.tokenizer_hash == Tokenizer::bytes().hash());
    CHECK(read.shards.size() == 3);
    CHECK(read.shards[1].hash == manifest.shards[1].hash);

    options.val_tokens = 5;   // the first five; what was there before is replaced
    options.shard_tokens = 100;
    manifest = prepare(options);
    CHECK(manifest.tokens("val") == 5);
    CHECK(manifest.tokens("train") == 6);
    CHECK_FALSE(std::filesystem::exists(options.output + "/train_000001.bin"));
}

TEST_CASE("tokenizer_corpus: shards of 16 bits up to 65,536 ids, of 32 beyond") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "text");
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.output = folder / "out";
    TokenizerData data = Tokenizer::bytes().data();
    while (data.tokens.size() < 0x10000) data.tokens.push_back(text("filler ", data.tokens.size()));
    for (std::uint32_t bytes : {2u, 4u}) {
        data.is_special.resize(data.tokens.size(), 1);
        data.end_of_text = static_cast<std::uint32_t>(data.tokens.size() - 1);
        const CorpusManifest manifest = prepare(options, Tokenizer(data));
        CHECK(manifest.token_bytes == bytes);
        CHECK(read_tokens(options.output, manifest, "train").front() == static_cast<std::int32_t>(data.end_of_text));
        data.tokens.push_back("one more");
    }
}

TEST_CASE("tokenizer_corpus: JSONL, separators, limits and refusals") {
    TemporaryFolder folder;
    write_file(folder / "a.jsonl", "{\"text\": \"x\\ny\"}\n\n{\"id\": 1, \"text\": \"z\"}");
    CorpusOptions options;
    options.input.files = {folder / "a.jsonl"};
    options.output = folder / "out";
    CHECK(document_of(read_tokens(options.output, prepare(options), "train")) == "<|endoftext|>x\ny<|endoftext|>z");

    options.input.files = {folder / "a.txt"};
    options.input.separator = "<>";
    write_file(folder / "a.txt", "<>one<><>two<>three");
    CHECK(document_of(read_tokens(options.output, prepare(options), "train")) ==
          "<|endoftext|>one<|endoftext|>two<|endoftext|>three");
    options.input.max_bytes = 11;
    CHECK(document_of(read_tokens(options.output, prepare(options), "train")) == "<|endoftext|>one");

    options.input.max_bytes = ~0ull;
    options.input.keep_separator = true;
    CHECK(document_of(read_tokens(options.output, prepare(options), "train")) ==
          "<|endoftext|><><|endoftext|>one<><|endoftext|><><|endoftext|>two<><|endoftext|>three");
    options.input.keep_separator = false;
    options.input.strip = true;
    write_file(folder / "a.txt", " \n<>\tone two \n<>\n<>three\n");
    CHECK(document_of(read_tokens(options.output, prepare(options), "train")) ==
          "<|endoftext|>one two<|endoftext|>three");

    write_file(folder / "bad.jsonl", "{\"text\": \"ok\"}\n{\"text\": nothing}\n");
    options = {};
    options.input.files = {folder / "bad.jsonl"};
    options.output = folder / "out";
    try {
        prepare(options);
        FAIL("accepted");
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::bad_data);
        CHECK(problem.message().find("bad.jsonl: offset 24:") != std::string::npos);
    }
    CHECK_FALSE(std::filesystem::exists(options.output + "/manifest.json"));
    options.input.field = "absent";
    CHECK_THROWS_AS(prepare(options), Error);
}

TEST_CASE("tokenizer_corpus: the number of threads and the cuts of large files change nothing") {
    TemporaryFolder folder;
    std::mt19937 random(9);
    const std::vector<std::string> words = {
        "the ", "caf\xc3\xa9 ", "\n\n",          "  ",         "x=1;\n",      "\xe4\xb8\xad\xe6\x96\x87",
        "'ll ", "\t",           "longer-words ", "0123456789", "\xe3\x80\x80"};
    std::string large, jsonl;
    while (large.size() < 5'000'000) large += words[random() % words.size()];
    for (int i = 0; i < 3000; i++) jsonl += "{\"text\": \"" + std::string(random() % 900, 'x') + "\"}\n";
    write_file(folder / "large.txt", large);
    write_file(folder / "many.jsonl", jsonl);
    write_file(folder / "invalid.txt", large.substr(0, 2'000'000) + "\xff" + large.substr(0, 100'000));

    TokenizerData data = Tokenizer::bytes().data();
    data.pattern.rule = SplitRule::gpt2;
    data.tokens.back() = "th";
    data.merges = {{'t', 'h', 256, 0}, {' ', ' ', 257, 1}};
    data.tokens.push_back("  ");
    data.tokens.push_back("<|endoftext|>");
    data.is_special = std::vector<std::uint8_t>(259, 0);
    data.is_special[258] = 1;
    data.end_of_text = 258;
    Tokenizer tokenizer(data);

    CorpusOptions options;
    options.input.files = {folder / "large.txt", folder / "many.jsonl", folder / "invalid.txt"};
    options.output = folder / "out";
    options.val_fraction = 0.1;
    options.shard_tokens = 1'000'000;
    CorpusManifest one = prepare(options, tokenizer);
    for (int threads : {2, 5}) {
        options.threads = threads;
        CorpusManifest several = prepare(options, tokenizer);
        REQUIRE(several.shards.size() == one.shards.size());
        for (std::size_t i = 0; i < one.shards.size(); i++) CHECK(several.shards[i].hash == one.shards[i].hash);
    }
    // and the same ids as encoding each document in one piece
    std::vector<std::uint32_t> whole = {258};
    Encoder(tokenizer).encode(large, whole);
    std::vector<std::int32_t> tokens = read_tokens(options.output, one, "train");
    CHECK(std::equal(whole.begin(), whole.end(), tokens.begin(), [](auto a, auto b) { return a == std::uint32_t(b); }));
}

TEST_CASE("tokenizer_corpus: no data for a split is an error, not an empty file") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "text");
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.output = folder / "out";
    options.val_fraction = 1e-9;
    CHECK_THROWS_AS(prepare(options), Error);
    options.val_fraction = 1;
    CHECK_THROWS_AS(prepare(options), Error);
    options.val_fraction = 0;
    options.input.files = {folder / "absent.txt"};
    CHECK_THROWS_AS(prepare(options), Error);
}

TEST_CASE("tokenizer_parallel: results come in order, and of several errors the first in order is thrown") {
    for (int threads : {1, 2, 8}) {
        std::vector<int> delivered;
        int next = 0;
        auto take = [&](int& item) { return (item = next++) < 500; };
        InOrder<int>(threads).run(
            take,
            [](int& item, int) {
                if (item % 7 == 0) std::this_thread::yield();
            },
            [&](int& item) { delivered.push_back(item); });
        REQUIRE(delivered.size() == 500);
        for (int i = 0; i < 500; i++) CHECK(delivered[static_cast<std::size_t>(i)] == i);

        next = 0;
        delivered.clear();
        auto failing = [](int& item, int) {
            if (item == 40) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (item >= 40 && item < 45) throw std::runtime_error(std::to_string(item));
        };
        CHECK_THROWS_WITH(InOrder<int>(threads).run(take, failing, [&](int& item) { delivered.push_back(item); }),
                          "40");
        CHECK(delivered.size() == 40);
    }
}
