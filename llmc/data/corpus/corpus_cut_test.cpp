// Tests what a call leaves that was cut or has failed, and that the next one goes on from it, or removes it.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "llmc/base/error.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
}

CorpusManifest prepare(const CorpusOptions& options) {
    return prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {}).manifest;
}

// All files of a folder, by name.
std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : real_files().list(folder))
        files[name] = read_whole(real_files(), folder + "/" + name);
    return files;
}

// A process that prepares the corpus and is gone, as if killed, when it reports for the `at`th time; false: it was
// done before.
bool is_cut(const CorpusOptions& options, int at, const Tokenizer& tokenizer = Tokenizer::bytes()) {
    const pid_t child = fork();
    if (child == 0) {
        int reports = 0;
        try {
            prepare_corpus(tokenizer, options, [&](const CorpusProgress&) {
                if (++reports == at) _exit(9);
            });
        } catch (const std::exception& problem) {
            std::fprintf(stderr, "%s\n", problem.what());
            _exit(1);
        }
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9));
    return WEXITSTATUS(status) == 9;
}

}   // namespace

TEST_CASE("tokenizer_corpus: a call that is cut again and again goes on to the same bytes") {
    TemporaryFolder folder;
    std::mt19937 random(5);
    CorpusOptions options;
    for (int file = 0; file < 4; file++) {   // a long text, lines and a list, many objects twice, some without a text
        std::string content = file == 3 ? "[" : "";
        for (int line = 0; line < 40'000; line++) {
            if (file == 3 && line > 0) content += ",";
            content += file == 0          ? text("word", random() % 5000, " ")
                       : line % 1000 == 9 ? "{\"text\": null}\n"
                                          : text("{\"text\": \"number ", random() % 50'000, " of many lines\"}\n");
        }
        if (file == 3) content += "]";
        options.input.files.push_back(folder / text(file, file == 0 ? ".txt" : file == 3 ? ".json" : ".jsonl"));
        const std::string once = content;   // batches have at most 8 MiB: the text is cut within
        while (file == 0 && content.size() < (20u << 20)) content += once;
        write_file(options.input.files.back(), content);
    }
    options.input.skip_bad_lines = true;
    options.shard_tokens = 300'000;
    options.threads = 2;
    for (int variant = 0; variant < 6; variant++) {
        options.dedup = variant % 2 == 1;
        options.val_files = variant / 2 == 0 ? 1 : 0;   // the long text, within which the call is cut
        options.val_tokens = variant / 2 == 1 ? 400'000 : 0;
        options.val_fraction = variant / 2 == 2 ? 0.5 : 0;
        options.output = folder / text("whole", variant);
        options.save_seconds = 1e6;
        prepare(options);
        const auto whole = files_in(options.output);
        options.output = folder / text("cut", variant);
        options.save_seconds = 0;
        int cuts = 0;
        std::uint64_t before = 0;
        while (cuts < 20 && is_cut(options, 1 + static_cast<int>(random() % 2))) cuts++;
        MESSAGE(cuts, " cuts");
        CHECK(cuts > 4);
        const SkippedLines skipped = prepare_corpus(Tokenizer::bytes(), options, [&](const CorpusProgress& p) {
                                         before = p.bytes_before;
                                     }).skipped;
        CHECK(skipped.count == 120);
        CHECK(skipped.first.find("1.jsonl: line 10, ") != std::string::npos);
        const auto cut = files_in(options.output);
        CHECK(cut.size() == whole.size());
        for (const auto& file : whole) {
            CHECK_MESSAGE((cut.contains(file.first) && cut.at(file.first) == file.second), file.first);
        }
    }
}

TEST_CASE("tokenizer_corpus: what was cut is begun anew where options or an input are others") {
    TemporaryFolder folder;
    std::string content;
    for (int line = 0; line < 200'000; line++) content += text("line ", line, " of a text\n");
    write_file(folder / "a.txt", content);
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.input.separator = "\n";
    options.output = folder / "out";
    options.save_seconds = 0;
    const auto bytes_before = [&](const Tokenizer& tokenizer = Tokenizer::bytes()) {
        std::uint64_t before = 0;
        prepare_corpus(tokenizer, options, [&](const CorpusProgress& p) { before = p.bytes_before; });
        return before;
    };
    REQUIRE(is_cut(options, 3));
    CHECK(bytes_before() > 0);
    CHECK(bytes_before() == 0);   // it is complete
    REQUIRE(is_cut(options, 3));
    options.shard_tokens = 1'000'000;
    CHECK(bytes_before() == 0);
    REQUIRE(is_cut(options, 3));
    write_file(folder / "a.txt", content + "more\n");
    CHECK(bytes_before() == 0);
    REQUIRE(is_cut(options, 3));
    for (const std::string& name : real_files().list(options.output)) {
        if (name.starts_with("train_")) std::filesystem::resize_file(options.output + "/" + name, 2000);
    }
    CHECK(bytes_before() == 0);
    CHECK(real_files().list(options.output).size() > 3);
    for (const std::string& name : real_files().list(options.output)) {
        CHECK_MESSAGE((!name.ends_with(".part") && !name.starts_with("tokenize.")), name);
    }
}

TEST_CASE("tokenizer_corpus: a changed byte of a shard, finished or not, is found when a cut call goes on") {
    TemporaryFolder folder;
    std::string content;
    for (int line = 0; line < 300'000; line++) content += text("line ", line, " of a text\n");
    write_file(folder / "a.txt", content);
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.input.separator = "\n";
    options.val_fraction = 0.2;
    options.shard_tokens = 400'000;
    options.save_seconds = 0;
    options.output = folder / "whole";
    prepare(options);
    const auto whole = files_in(options.output);
    options.output = folder / "out";
    struct Change {
        const char* shard;      // the first file whose name has this
        std::ptrdiff_t place;   // of the byte; negative: from the end
    };
    const Change changes[] = {{"train_000000.bin", 1024},    {"train_000000.bin", 500'001},
                              {"train_000000.bin", -1},      {"train_000000.bin", 8},
                              {"train_000001.bin", 0},       {"train_000001.bin", 1023},
                              {"val_000000.bin", 2000},      {"val_000000.bin", 12},
                              {"val_000002.bin.part", 1100}, {"", 0}};
    for (const Change& change : changes) {
        const bool is_changed = change.shard[0] != '\0';
        CAPTURE(change.shard);
        CAPTURE(change.place);
        REQUIRE(is_cut(options, 5));
        std::string path;
        for (const std::string& name : real_files().list(options.output)) {
            if (is_changed && path.empty() && name.find(change.shard) != name.npos) path = options.output + "/" + name;
        }
        REQUIRE(path.empty() != is_changed);
        if (is_changed) {
            std::string bytes = read_whole(real_files(), path);
            const std::size_t at = static_cast<std::size_t>(change.place) + (change.place < 0 ? bytes.size() : 0);
            bytes.at(at) = static_cast<char>(bytes[at] ^ 4);
            write_file(path, bytes);
        }
        std::uint64_t before = 0;
        const PreparedCorpus made =
            prepare_corpus(Tokenizer::bytes(), options, [&](const CorpusProgress& p) { before = p.bytes_before; });
        CHECK(made.changed == path);
        CHECK((before > 0) != is_changed);
        const auto files = files_in(options.output);
        CHECK(files.size() == whole.size());
        for (const auto& file : whole)
            CHECK_MESSAGE((files.contains(file.first) && files.at(file.first) == file.second), file.first);
        std::filesystem::remove_all(options.output);
    }
}

TEST_CASE("tokenizer_corpus: what was cut is begun anew where the same tokens come from text in another way") {
    TemporaryFolder folder;
    std::string content;
    for (int line = 0; line < 200'000; line++) content += text("line ", line, " of a text\n");
    write_file(folder / "a.txt", content);
    CorpusOptions options;
    options.input.files = {folder / "a.txt"};
    options.output = folder / "out";
    options.save_seconds = 0;
    TokenizerData base = Tokenizer::bytes().data();
    base.tokens.resize(256);
    for (const char* token : {"li", "ne", "<|endoftext|>", "of"}) base.tokens.push_back(token);
    base.is_special.resize(base.tokens.size());
    base.is_special[256] = 0;
    base.is_special[258] = 1;
    base.is_special[259] = 2;
    base.end_of_text = 258;
    base.pattern.rule = SplitRule::gpt2;
    base.merges = {{'l', 'i', 256, 0}, {'n', 'e', 257, 1}};
    std::vector<TokenizerData> others(8, base);
    others[0].pattern.rule = SplitRule::cl100k;
    others[1].merges.pop_back();
    others[2].whole_piece_first = true;
    others[3].is_special[259] = 1;
    others[4].rules[259] = {.lstrip = true};
    others[5].pattern.nfc = true;
    others[6].pattern = {SplitRule::regex, "[a-z]+|[^a-z]", false};
    others[7].merge_by_rank = true;
    others.push_back(base);
    for (const TokenizerData& other : others) {
        const Tokenizer tokenizer(other);
        REQUIRE(tokenizer.hash() == Tokenizer(base).hash());
        REQUIRE(is_cut(options, 3, Tokenizer(base)));
        std::uint64_t before = 0;
        prepare_corpus(tokenizer, options, [&](const CorpusProgress& p) { before = p.bytes_before; });
        CHECK((before > 0) == (&other == &others.back()));
    }
}

TEST_CASE("tokenizer_corpus: shards of a call that was cut or has failed go with the next, whatever its name") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", std::string(3 << 20, 'x'));
    write_file(folder / "bad.jsonl", "{\"text\": nothing}\n");
    CorpusOptions options;
    options.output = folder / "out";
    options.shard_tokens = 10'000;
    auto count_of = [&](const std::string& name) {
        return std::ranges::count_if(real_files().list(options.output), [&](const std::string& file) {
            return file.starts_with(name + "train_0") || file.starts_with(name + "val_0");
        });
    };
    options.val_tokens = 25'000;
    const auto prepare_last = [&] {
        options.name = "last";
        options.input.files = {folder / "a.txt"};
        prepare(options);
    };
    for (const std::string name : {"", "first"}) {
        const std::string prefix = name.empty() ? "" : "first_";
        options.name = name;
        options.input.files = {folder / "a.txt"};
        REQUIRE(is_cut(options, 2));   // before a state is saved
        CHECK(count_of(prefix) > 10);
        options.name = "second";
        REQUIRE(is_cut(options, 2));
        CHECK(count_of(prefix) == 0);
        prepare_last();
        CHECK(count_of("second_") == 0);
        CHECK(count_of("last_") > 10);

        int ends[2];
        REQUIRE(pipe(ends) == 0);   // an input from which no call goes on
        const std::string content(60'000, 'x');
        REQUIRE(write(ends[1], content.data(), content.size()) == static_cast<ssize_t>(content.size()));
        close(ends[1]);
        options.name = name;
        options.input.files = {text("/dev/fd/", ends[0]), folder / "bad.jsonl"};
        CHECK_THROWS_AS(prepare(options), Error);
        close(ends[0]);
        CHECK(count_of(prefix) == 5);
        prepare_last();
        CHECK(count_of(prefix) == 0);
    }
}
