// Which documents --val-fraction draws.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "llmc/base/error.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/data/inspect.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

// The documents on each side, in their order, of files with these contents.
std::map<std::string, std::vector<std::string>> sides_of(CorpusOptions options, const TemporaryFolder& folder,
                                                         const std::vector<std::string>& contents) {
    options.input.files.clear();
    for (const std::string& content : contents) {
        options.input.files.push_back(folder / text(options.input.files.size(), ".txt"));
        write_whole(real_files(), options.input.files.back(), content);
    }
    options.output = folder / "out";
    prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {});
    std::map<std::string, std::vector<std::string>> sides;
    for (const char* split : {"train", "val"}) {
        std::string rest;
        decode_shards(Tokenizer::bytes(), shards_of(options.output, split),
                      [&](const std::string& piece) { rest += piece; });
        const std::string between = "<|endoftext|>";
        while (!rest.empty()) {
            REQUIRE(rest.starts_with(between));
            const std::size_t end = std::min(rest.find(between, 1), rest.size());
            sides[split].push_back(rest.substr(between.size(), end - between.size()));
            rest.erase(0, end);
        }
    }
    return sides;
}

std::string lines(int first, int last) {
    std::string content;
    for (int i = first; i < last; i++) content += text("document ", i, " of a few words\n");
    return content;
}

}   // namespace

TEST_CASE("tokenizer_corpus: a document is drawn by what it says, whatever stands before and behind it") {
    TemporaryFolder folder;
    CorpusOptions options;
    options.val_fraction = 0.2;
    options.input.separator = "\n";
    const auto alone = sides_of(options, folder, {lines(0, 2000)});
    const auto val = [](const auto& sides) { return std::set(sides.at("val").begin(), sides.at("val").end()); };
    CHECK(alone.at("val").size() > 300);   // 400 are expected
    CHECK(alone.at("val").size() < 500);
    CHECK(alone.at("train").size() + alone.at("val").size() == 2000);
    for (const bool dedup : {false, true}) {
        options.dedup = dedup;
        const std::vector<std::vector<std::string>> neighbours{{lines(5000, 5100), lines(0, 2000)},
                                                               {lines(0, 2000), lines(5000, 5100)},
                                                               {lines(1000, 2000), "", lines(0, 1000)},
                                                               {lines(0, 2000), lines(0, 2000)}};
        for (const std::vector<std::string>& contents : neighbours) {
            const auto sides = sides_of(options, folder, contents);
            const std::set<std::string> drawn = val(sides);
            for (const std::string& document : alone.at("val")) CHECK(drawn.contains(document));
            for (const std::string& document : sides.at("train")) CHECK(!drawn.contains(document));   // equal ones too
            for (const std::string& document : alone.at("train")) CHECK(!drawn.contains(document));
        }
    }
}

TEST_CASE("tokenizer_corpus: the draw depends on no cuts, and a larger fraction takes more of the same") {
    TemporaryFolder folder;
    CorpusOptions options;
    options.input.separator = "\n";
    const std::string content = lines(0, 300);
    std::set<std::string> before;
    for (const double fraction : {0.05, 0.3, 0.9}) {
        options.val_fraction = fraction;
        const auto sides = sides_of(options, folder, {content});
        const std::set<std::string> drawn(sides.at("val").begin(), sides.at("val").end());
        CHECK(std::ranges::includes(drawn, before));
        CHECK(drawn.size() > before.size());
        before = drawn;
    }
    // documents that are longer than what is held of them, and than a batch of input
    options.input.separator = "";
    options.val_fraction = 0.5;
    std::vector<std::string> large;
    for (int i = 0; i < 6; i++) large.push_back(text("number ", i) + std::string((1 << 20) * (i + 1), 'x'));
    const auto sides = sides_of(options, folder, large);
    for (const int threads : {1, 3}) {
        for (const bool dedup : {false, true}) {
            options.threads = threads, options.dedup = dedup;
            CHECK(sides_of(options, folder, large) == sides);
            std::vector<std::string> reversed(large.rbegin(), large.rend());
            auto other = sides_of(options, folder, reversed);
            for (auto& [split, documents] : other) std::ranges::reverse(documents);
            CHECK(other == sides);
        }
    }
}
