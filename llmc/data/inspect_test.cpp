#include "llmc/data/inspect.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "llmc/base/error.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

const std::string first_document = "some text, for once", second_document = "more \xff\xfe of it";

std::string prepare(const TemporaryFolder& folder) {
    std::ofstream(folder / "a") << first_document;
    std::ofstream(folder / "b") << second_document;
    CorpusOptions options;
    options.input.files = {folder / "a", folder / "b"};
    options.output = folder / "corpus";
    options.shard_tokens = 10;
    options.val_tokens = 4;
    prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {});
    return options.output;
}

std::string message_of_verify(const std::string& folder) {
    try {
        verify_corpus(folder);
        return "";
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::bad_data);
        return problem.message();
    }
}

void change_byte(const std::string& path, std::streamoff at, char value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(value);
}

}   // namespace

TEST_CASE("tokenizer_inspect: decoding gives the documents back") {
    TemporaryFolder folder;
    std::string corpus = prepare(folder), text;
    std::vector<std::string> shards = shards_of(corpus, "val");
    for (const std::string& shard : shards_of(corpus, "train")) shards.push_back(shard);
    CHECK(shards.size() == 4);
    decode_shards(Tokenizer::load(corpus), shards, [&](const std::string& piece) { text += piece; });
    CHECK(text == "<|endoftext|>" + first_document + "<|endoftext|>" + second_document);
}

TEST_CASE("tokenizer_inspect: statistics") {
    TemporaryFolder folder;
    std::string corpus = prepare(folder);
    CorpusStats stats = count_shards(Tokenizer::load(corpus), shards_of(corpus, ""));
    CHECK(stats.documents == 2);
    CHECK(stats.bytes == first_document.size() + second_document.size());
    CHECK(stats.tokens == stats.bytes + 2);
    CHECK(stats.entropy > 3);
    CHECK(stats.entropy < 5);
}

TEST_CASE("tokenizer_inspect: verify finds whatever is wrong and says where") {
    TemporaryFolder folder;
    std::string corpus = prepare(folder);
    CHECK(verify_corpus(corpus).shards.size() == 4);
    std::string shard = corpus + "/train_000001.bin";
    auto spoil = [&](auto damage, const char* expected) {
        prepare(folder);
        damage();
        std::string message = message_of_verify(corpus);
        CHECK_MESSAGE(message.find(expected) != std::string::npos, message);
    };
    spoil([&] { change_byte(shard, 0, 0); }, "train_000001.bin");      // magic
    spoil([&] { change_byte(shard, 4, 9); }, "train_000001.bin");      // version
    spoil([&] { change_byte(shard, 8, 9); }, "train_000001.bin");      // count
    spoil([&] { change_byte(shard, 1025, 3); }, "train_000001.bin");   // an id beyond the vocabulary
    spoil([&] { change_byte(shard, 1024, '~'); }, "byte 1024");        // another valid id: only the hash tells
    spoil([&] { std::filesystem::resize_file(shard, 1030); }, "train_000001.bin");
    spoil([&] { std::filesystem::resize_file(shard, 100); }, "train_000001.bin");
    spoil([&] { change_byte(corpus + "/tokenizer.json", 40, '!'); }, "tokenizer.json");
    spoil([&] { change_byte(corpus + "/manifest.json", 3, '!'); }, "manifest.json");
    spoil(
        [&] { write_whole(real_files(), corpus + "/manifest.json", "{\"format\": \"token shards\", \"version\": 2}"); },
        "version 1");
    spoil(
        [&] {
            TokenizerData other = Tokenizer::bytes().data();
            other.tokens[256] = "<end>";
            Tokenizer(other).save(corpus);
        },
        "tokenizer.json: this tokenizer has the hash ");
    auto edit_manifest = [&](const std::string& from, const std::string& to) {
        std::string content = read_whole(real_files(), corpus + "/manifest.json");
        REQUIRE(content.find(from) != std::string::npos);
        write_whole(real_files(), corpus + "/manifest.json", content.replace(content.find(from), from.size(), to));
    };
    spoil([&] { edit_manifest("\"end_of_text\": 256", "\"end_of_text\": 255"); }, "manifest.json says 255");
    spoil([&] { edit_manifest("train_000001.bin", "train_000007.bin"); },
          "manifest.json: there is no train_000007.bin beside it");
    spoil([&] { std::filesystem::remove(shard); }, "manifest.json: there is no train_000001.bin beside it");
}

TEST_CASE("tokenizer_inspect: lengths of documents and what masks leave of attention, counted by hand") {
    TemporaryFolder folder;
    std::vector<std::uint32_t> ids;
    for (const int length : {1, 3, 4, 9}) {   // 7 begins each; the last one goes on in the next shard, with 2 tokens
        for (int t = 0; t < length; t++) ids.push_back(t == 0 ? 7 : 1);
    }
    write_token_file(real_files(), folder / "a.bin", TokenFormat::gpt2, ids);
    write_token_file(real_files(), folder / "b.bin", TokenFormat::gpt2, std::vector<std::uint32_t>{1, 1, 7, 1, 1, 1});
    std::vector<TokenFile> shards;
    shards.emplace_back(real_files(), folder / "a.bin");
    shards.emplace_back(real_files(), folder / "b.bin");
    const DocumentCounts counts = count_documents(shards, 5, 7, 10);
    CHECK(counts.documents == 5);
    CHECK(counts.longest == 11);
    CHECK(counts.by_length == std::vector<std::uint64_t>{1, 1, 2, 1});   // 1; 3; 4, 4; 11
    // documents of a: 1 3 1 | 3 2 | 5, two tokens left over; of b: 2 3
    const double squares = 1 + 9 + 1 + 9 + 4 + 25 + 4 + 9;
    CHECK(counts.attention_left == doctest::Approx(squares / (4 * 25)));
    const std::string picture = picture_of(counts);
    CHECK(picture.find("4 to 7            |##################################################|  40.0%") !=
          std::string::npos);
}
