#include "llmc/data/corpus/corpus_check.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "llmc/base/error.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"

namespace fs = std::filesystem;

namespace {

// Bytes, with a token more: another vocabulary of the same kind.
Tokenizer bytes_and(const std::string& more) {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.push_back(more);
    data.is_special.push_back(1);
    return Tokenizer(data);
}

// A prepared corpus in folder/name: three training shards, one for validation.
std::string prepare(const TemporaryFolder& folder, const std::string& name, const Tokenizer& tokenizer) {
    fs::remove_all(folder / name);
    std::ofstream(folder / "text") << "some text, for once, to be cut in three";
    CorpusOptions options;
    options.input.files = {folder / "text"};
    options.output = folder / name;
    options.shard_tokens = 12;
    options.val_tokens = 4;
    prepare_corpus(tokenizer, options, [](const CorpusProgress&) {});
    return options.output;
}

CorpusExpectation expect(const std::string& train, const std::string& val, std::int64_t vocab_size) {
    CorpusExpectation expected;
    expected.data = {{"--train-data", train + "/*train*.bin"}, {"--val-data", val + "/*val*.bin"}};
    expected.vocab_size = vocab_size;
    return expected;
}

std::string complaint(const CorpusExpectation& expected) {
    try {
        check_corpora(real_files(), expected);
        return "";
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::bad_data);
        CHECK(!problem.hint().empty());
        return problem.what();
    }
}

bool says(const CorpusExpectation& expected, const std::string& what) {
    const std::string message = complaint(expected);
    CAPTURE(message);
    const bool found = message.find(what) != std::string::npos;
    CHECK(found);
    return found;
}

void change_byte(const std::string& path, std::streamoff at, char value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(value);
}

}   // namespace

TEST_CASE("corpus_check: what belongs together passes, and so does data without a manifest") {
    TemporaryFolder folder;
    const std::string corpus = prepare(folder, "a", Tokenizer::bytes());
    CHECK(complaint(expect(corpus, corpus, 257)) == "");
    fs::remove(corpus + "/manifest.json");
    CHECK(complaint(expect(corpus, corpus, 50257)) == "");
}

TEST_CASE("corpus_check: the vocabulary's size") {
    TemporaryFolder folder;
    const std::string corpus = prepare(folder, "a", Tokenizer::bytes());
    CorpusExpectation expected = expect(corpus, corpus, 256);
    expected.why_that_size = ", GPT-2's";
    says(expected, "--train-data was tokenized with a vocabulary of 257 ids, the model has 256, GPT-2's");
    expected.larger_is_meant = true;
    says(expected, "set it to 257");
    expected.vocab_size = 300;
    CHECK(complaint(expected) == "");
    expected.larger_is_meant = false;
    says(expected, "--vocab-size 300");
}

TEST_CASE("corpus_check: training data, validation data and model of different tokenizers") {
    TemporaryFolder folder;
    const std::string a = prepare(folder, "a", bytes_and("<a>")), b = prepare(folder, "b", bytes_and("<b>"));
    says(expect(a, b, 258), "--val-data was tokenized with tokenizer");
    CorpusExpectation expected = expect(a, a, 258);
    fs::create_directory(folder / "model");
    expected.model_folders = {"", folder / "model", folder / "none"};
    CHECK(complaint(expected) == "");   // nothing is known of that model
    bytes_and("<b>").save(folder / "model");
    says(expected, "was trained with a tokenizer of hash");
    fs::remove(folder / "model/tokenizer.bin");   // as Hugging Face's folders are
    says(expected, "was trained with a tokenizer of hash");
    bytes_and("<a>").save(folder / "model");
    CHECK(complaint(expected) == "");
    fs::remove(folder / "model/tokenizer.bin");
    CHECK(complaint(expected) == "");
    write_whole(real_files(), folder / "model/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    CHECK(complaint(expected) == "");   // of a kind that we do not know
}

TEST_CASE("corpus_check: another tokenizer beside the shards") {
    TemporaryFolder folder;
    const std::string a = prepare(folder, "a", bytes_and("<a>"));
    bytes_and("<b>").save(a);
    says(expect(a, a, 258), "/tokenizer.bin: this tokenizer has the hash");
}

TEST_CASE("corpus_check: a token that tokenizer.bin cannot hold is no mismatch") {
    TemporaryFolder folder;
    const std::string a = prepare(folder, "a", bytes_and(std::string(300, 'x')));
    CHECK(complaint(expect(a, a, 258)) == "");
}

TEST_CASE("corpus_check: shards that do not fit the manifest") {
    TemporaryFolder folder;
    std::string corpus;
    auto spoil = [&](auto damage, const char* expected) {
        corpus = prepare(folder, "a", Tokenizer::bytes());
        damage(corpus + "/train_000001.bin");
        says(expect(corpus, corpus, 257), expected);
    };
    spoil([](const std::string& shard) { change_byte(shard, 1024, '~'); }, "train_000001.bin: byte 1024: the tokens");
    spoil([](const std::string& shard) { fs::copy(shard, fs::path(shard).replace_filename("train_x.bin")); },
          "does not list this file");
    spoil([](const std::string& shard) { fs::resize_file(shard, 1030); }, "train_000001.bin: byte 8");
    spoil(
        [](const std::string& shard) {
            fs::resize_file(shard, 1024 + 6);
            change_byte(shard, 8, 3);
        },
        "train_000001.bin: byte 8: 3 tokens");
    spoil(
        [](const std::string& shard) {
            write_token_file(real_files(), shard, TokenFormat::llama3, std::vector<std::uint32_t>(12));
        },
        "byte 0: tokens of 4 bytes");
    spoil([](const std::string& shard) { change_byte(fs::path(shard).replace_filename("manifest.json"), 3, '!'); },
          "manifest.json: byte");

    // too much data to be hashed at every start: the rest is still checked
    corpus = prepare(folder, "a", Tokenizer::bytes());
    change_byte(corpus + "/train_000001.bin", 1024, '~');
    CorpusExpectation expected = expect(corpus, corpus, 257);
    expected.max_hashed_bytes = 1000;
    CHECK(complaint(expected) == "");
    CHECK(check_corpora(real_files(), expected) == 3 * 1024 + 2 * 36 + 2 * 4 + 1024);
}
