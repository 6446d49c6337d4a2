#include "llmc/data/corpus/corpus.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "llmc/base/error.h"
#include "llmc/data/inspect.h"
#include "llmc/data/token_file.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"
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
    return prepare_corpus(tokenizer, options, [](const CorpusProgress&) {}).manifest;
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

TEST_CASE("tokenizer_corpus: one call at a time writes into a folder, and the next one sees what it has written") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "one and two and three");
    CorpusOptions options, others;
    options.input.files = others.input.files = {folder / "a.txt"};
    options.output = others.output = folder / "out";
    others.overwrite = false;
    bool is_refused = false;
    prepare_corpus(Tokenizer::bytes(), options, [&](const CorpusProgress&) {
        for (const bool overwrite : {false, true}) {
            others.overwrite = overwrite;
            try {
                prepare(others);
            } catch (const Error& error) {
                is_refused = true;
                CHECK(error.exit_code() == 64);
                CHECK(error.message().find("another run is writing there (process ") != std::string::npos);
            }
        }
    });
    CHECK(is_refused);
    CHECK_FALSE(std::filesystem::exists(options.output + "/tokenize.lock"));
    others.overwrite = false;
    try {
        prepare(others);
        FAIL("not refused");
    } catch (const Error& error) {
        CHECK(error.exit_code() == 64);
        CHECK(error.message().find("manifest.json is there already") != std::string::npos);
    }
    verify_corpus(options.output);
    others.overwrite = true;
    CHECK(prepare(others).documents == 1);
}

TEST_CASE("tokenizer_corpus: a corpus replaces the one before it, under whatever name, and nothing else") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "one and two and three");
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.output = folder / "out";
    options.shard_tokens = 4;
    options.val_tokens = 6;
    auto shards_there = [&] {
        std::set<std::string> names;
        for (const std::string& name : real_files().list(options.output)) {
            if (name.ends_with(".bin") && name != "tokenizer.bin") names.insert(name);
        }
        return names;
    };
    std::set<std::string> of_others;
    auto add_other = [&](const std::string& name) {
        write_file(options.output + "/" + name, "mine");
        of_others.insert(name);
    };
    for (const char* name : {"web", "", "pretrain", "val", "a_train", "web"}) {
        options.name = name;
        const CorpusManifest manifest = prepare(options);
        std::set<std::string> expected = of_others;
        for (const ShardInfo& shard : manifest.shards) expected.insert(shard.file);
        CHECK(shards_there() == expected);
        CHECK_FALSE(std::filesystem::exists(options.output + "/tokenize.replaced"));
        if (of_others.empty()) add_other("other_train_000000.bin"), add_other("notes.bin");
    }
    // a call that was cut while it removed them, and one that was cut while it wrote, under another name
    const std::string manifest = options.output + "/manifest.json";
    std::filesystem::rename(manifest, options.output + "/tokenize.replaced");
    write_file(options.output + "/tokenize.unfinished", "tokenize writes here\n");
    write_file(options.output + "/half_train_000000.bin.part", "");
    options.name = "last";
    prepare(options);
    std::set<std::string> expected = of_others;
    for (const ShardInfo& shard : read_manifest(real_files(), options.output).shards) expected.insert(shard.file);
    CHECK(shards_there() == expected);
    CHECK_FALSE(std::filesystem::exists(options.output + "/half_train_000000.bin.part"));
    CorpusState state;
    state.train.shards = {{"last_train_000000.bin", "train", 4, 0}, {"other_train_000000.bin", "train", 4, 0}};
    write_file(options.output + "/tokenize.unfinished", to_text(state));
    std::filesystem::remove(manifest);
    options.name = "then";
    prepare(options);
    CHECK_FALSE(shards_there().contains("last_train_000000.bin"));
    CHECK_FALSE(shards_there().contains("other_train_000000.bin"));   // it was listed now
    CHECK(shards_there().contains("notes.bin"));
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
        CHECK(problem.message().find("bad.jsonl: line 2, offset 24:") != std::string::npos);
    }
    CHECK_FALSE(std::filesystem::exists(options.output + "/manifest.json"));
    options.input.field = "absent";
    CHECK_THROWS_AS(prepare(options), Error);
    options.input.skip_bad_lines = true;
    try {
        prepare(options);
        FAIL("accepted");
    } catch (const Error& problem) {
        CHECK(problem.message().find("all 2 lines were passed over, the first: ") != std::string::npos);
        CHECK(problem.hint().find("--field") != std::string::npos);
    }
}

TEST_CASE("tokenizer_corpus: lines that are passed over are no documents, whatever the threads") {
    TemporaryFolder folder;
    std::string good, mixed;
    for (int line = 1; line <= 200'000; line++) {
        const bool bad = line % 7 == 3;
        const std::string object = bad ? "{\"text\": null}\n" : text("{\"text\": \"document ", line, "\"}\n");
        mixed += object;
        if (!bad) good += object;
    }
    write_file(folder / "good.jsonl", good);
    write_file(folder / "mixed.jsonl", mixed);
    CorpusOptions options;
    options.output = folder / "out";
    options.input.files = {folder / "good.jsonl"};
    const CorpusManifest expected = prepare(options);
    options.input.files = {folder / "mixed.jsonl"};
    CHECK_THROWS_WITH_AS(prepare(options), doctest::Contains("mixed.jsonl: line 3, "), Error);
    options.input.skip_bad_lines = true;
    for (int threads : {1, 4}) {
        options.threads = threads;
        const PreparedCorpus prepared = prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {});
        CHECK(prepared.skipped.count == 28572);
        CHECK(prepared.skipped.first.find("mixed.jsonl: line 3, ") != std::string::npos);
        CHECK(prepared.manifest.documents == expected.documents);
        CHECK(prepared.files[0].documents == expected.documents);
        CHECK(prepared.manifest.shards[0].hash == expected.shards[0].hash);
    }
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
    auto complaint = [&] {
        try {
            prepare(options);
            return std::string();
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            CHECK(!error.hint().empty());
            return error.message();
        }
    };
    options.val_fraction = 1e-9;
    CHECK(complaint() == "no validation tokens: --val-fraction 1e-09 drew none of 1 document(s)");
    options.val_fraction = 1;
    CHECK(complaint() ==
          text("no training tokens: --val-fraction 1 drew all 1 document(s) of ", folder / "a.txt", " for validation"));
    write_file(folder / "b.txt", "text");
    options.input.files.push_back(folder / "b.txt");
    CHECK(complaint() == text("no training tokens: --val-fraction 1 drew all 2 document(s) of ", folder / "a.txt",
                              " and 1 more for validation"));
    options.val_fraction = 0;
    options.val_tokens = 100;
    CHECK(complaint().ends_with(" more became validation data"));
    options.val_tokens = 0;
    options.val_files = 2;
    CHECK(complaint().ends_with(" more became validation data"));
    options.val_files = 0;
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

TEST_CASE("tokenizer_corpus: documents, tokens and bytes of each file") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "one\ntwo\n");
    write_file(folder / "b.txt", "two\nthree");
    CorpusOptions options;
    options.input.files = {folder / "a.txt", folder / "b.txt"};
    options.input.separator = "\n";
    options.output = folder / "out";
    options.dedup = true;
    const auto files = prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {}).files;
    CHECK(files[0].documents == 2);
    CHECK(files[0].tokens == 8);
    CHECK(files[0].bytes == 6);
    CHECK(files[1].documents == 1);   // "two" was there
    CHECK(files[1].tokens == 6);
    CHECK(files[1].bytes == 8);
}
