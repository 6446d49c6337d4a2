#include "llmc/tokenizer/bpe/bpe_train.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/tokenizer/files/files.h"

namespace {

void ignore(const BpeTrainProgress&) {}

// The definition: count all pairs anew for every merge.
std::vector<BpeMerge> plain_training(const std::vector<PieceCount>& pieces, const BpeTrainOptions& options) {
    std::vector<std::string> tokens = learn_merges({}, options, ignore).tokens;   // the bytes, in their order
    tokens.pop_back();
    std::vector<std::vector<std::uint32_t>> words;
    for (const PieceCount& piece : pieces) {
        words.emplace_back();
        for (char byte : piece.bytes) {
            auto at = std::find(tokens.begin(), tokens.end(), std::string(1, byte));
            words.back().push_back(static_cast<std::uint32_t>(at - tokens.begin()));
        }
    }
    std::vector<BpeMerge> merges;
    while (tokens.size() + 1 < options.vocab_size) {
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> counts;
        for (std::size_t w = 0; w < words.size(); w++) {
            for (std::size_t i = 0; i + 1 < words[w].size(); i++) {
                if (tokens[words[w][i]].size() + tokens[words[w][i + 1]].size() > options.max_token_bytes) continue;
                counts[{words[w][i], words[w][i + 1]}] += pieces[w].count;
            }
        }
        auto best = counts.end();   // the map is in the order of pairs, so the first of equals has the lowest ids
        for (auto at = counts.begin(); at != counts.end(); ++at) {
            if (best == counts.end() || at->second > best->second) best = at;
        }
        if (best == counts.end() || best->second < options.min_count) break;
        auto [left, right] = best->first;
        std::uint32_t id = static_cast<std::uint32_t>(tokens.size());
        merges.push_back({left, right, id, static_cast<std::uint32_t>(merges.size())});
        tokens.push_back(tokens[left] + tokens[right]);
        for (auto& word : words) {
            for (std::size_t i = 0; i + 1 < word.size(); i++) {
                if (word[i] != left || word[i + 1] != right) continue;
                word[i] = id;
                word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            }
        }
    }
    return merges;
}

bool same_merges(const std::vector<BpeMerge>& a, const std::vector<BpeMerge>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const BpeMerge& x, const BpeMerge& y) {
        return x.left == y.left && x.right == y.right && x.result == y.result;
    });
}

std::string random_text(std::mt19937& random, std::size_t words) {
    std::string text;
    for (std::size_t i = 0; i < words; i++) {
        text += random() % 9 == 0 ? "\n" : " ";
        for (std::size_t n = random() % 9; n > 0; n--) text += static_cast<char>('a' + random() % 4 % 3);
        if (random() % 20 == 0) text += "-----------------";
        if (random() % 50 == 0) text += "\xff";
    }
    return text;
}

}   // namespace

TEST_CASE("bpe_train: counts kept up to date give the merges of counting anew") {
    std::mt19937 random(10);
    for (int round = 0; round < 30; round++) {
        std::map<std::string, std::uint64_t> counts;
        for (int i = 0; i < 60; i++) {
            std::string word;
            for (std::size_t n = 1 + random() % 12; n > 0; n--) word += static_cast<char>('a' + random() % 4 % 3);
            counts[word] += 1 + random() % 5;
        }
        std::vector<PieceCount> pieces;
        for (const auto& [bytes, count] : counts) pieces.push_back({bytes, count});
        BpeTrainOptions options;
        options.vocab_size = 257 + 60;
        options.min_count = 1 + random() % 4;
        options.max_token_bytes = random() % 2 ? 255 : 5;
        CHECK(same_merges(learn_merges(pieces, options, ignore).merges, plain_training(pieces, options)));
    }
}

TEST_CASE("bpe_train: pieces of every length are counted, zeros in them too") {
    TemporaryFolder folder;
    std::mt19937 random(9);
    std::map<std::string, std::uint64_t> expected;
    std::string text;
    for (int i = 0; i < 40000; i++) {   // so many different ones that the table grows
        std::string piece = i % 2 == 0 ? " " : "-";
        const std::size_t length = 1 + random() % 24;
        for (std::size_t j = 0; j < length; j++) {
            piece += i % 2 == 0 ? static_cast<char>('a' + random() % 26) : "\0\x01."[random() % 3];
        }
        text += piece;
        expected[piece]++;
    }
    std::ofstream(folder / "text", std::ios::binary) << text;
    for (int threads : {1, 2}) {
        BpeTrainOptions options;
        options.threads = threads;
        InputOptions input;
        input.files = {folder / "text"};
        input.format = InputFormat::text;
        const std::vector<PieceCount> pieces = count_pieces(input, options, ignore);
        REQUIRE(pieces.size() == expected.size());
        std::size_t wrong = 0;
        for (const PieceCount& piece : pieces) wrong += expected[piece.bytes] != piece.count;
        CHECK(wrong == 0);
    }
}

TEST_CASE("bpe_train: neither threads nor the order of documents change the vocabulary") {
    TemporaryFolder folder;
    std::mt19937 random(11);
    InputOptions input;
    for (int i = 0; i < 6; i++) {
        input.files.push_back(folder / std::to_string(i));
        std::ofstream(input.files.back(), std::ios::binary) << random_text(random, i == 0 ? 400'000 : 500);
    }
    BpeTrainOptions options;
    options.vocab_size = 600;
    TokenizerData one = train_bpe(input, options, ignore);
    options.threads = 3;
    std::reverse(input.files.begin(), input.files.end());
    CHECK(same_merges(train_bpe(input, options, ignore).merges, one.merges));
    CHECK(one.merges.size() > 200);
}

TEST_CASE("bpe_train: all its files give the same ids, and every token is reached by its merges") {
    TemporaryFolder folder;
    std::mt19937 random(12);
    InputOptions input;
    input.files = {folder / "text"};
    std::string text = random_text(random, 20'000);
    std::ofstream(input.files[0], std::ios::binary) << text;
    BpeTrainOptions options;
    options.vocab_size = 700;
    Tokenizer trained(train_bpe(input, options, ignore));
    trained.save(folder.path());
    Tokenizer json = Tokenizer::load(folder / "tokenizer.json");
    Tokenizer ranks(parse_tiktoken_ranks(to_tiktoken_ranks(trained.data()), "ranks"));
    Tokenizer bin = Tokenizer::load(folder / "tokenizer.bin");
    CHECK(json.hash() == trained.hash());
    CHECK(ranks.hash() == trained.hash());
    CHECK(bin.hash() == trained.hash());
    std::vector<std::uint32_t> ids[3];
    Encoder(trained).encode(text, ids[0]);
    Encoder(json).encode(text, ids[1]);
    Encoder(ranks).encode(text, ids[2]);
    CHECK(ids[0] == ids[1]);
    CHECK(ids[0] == ids[2]);
    BpeModel::Scratch scratch;
    for (std::uint32_t id = 0; id + 1 < trained.vocab_size(); id++) {
        std::vector<std::uint32_t> alone;
        trained.model().encode(trained.data().tokens[id], scratch, alone);
        CHECK(alone == std::vector<std::uint32_t>{id});
    }
}

TEST_CASE("bpe_train: vocabularies that cannot be") {
    BpeTrainOptions options;
    options.vocab_size = 256;
    CHECK_THROWS_AS(learn_merges({}, options, ignore), Error);
    options.vocab_size = 1000;   // more than the text has pairs
    TokenizerData data = learn_merges({{"abab", 3}}, options, ignore);
    CHECK(data.merges.size() == 2);
    CHECK(data.tokens.size() == 259);
}

TEST_CASE("bpe_train: no text at all is an error, and says where it may be") {
    TemporaryFolder folder;
    InputOptions input;
    BpeTrainOptions options;
    options.vocab_size = 300;
    auto complaint = [&](const std::string& name, const std::string& content) {
        std::ofstream(folder / name, std::ios::binary) << content;
        input.files = {folder / name};
        try {
            train_bpe(input, options, ignore);
            return std::string();
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            return text(error.message(), " ", error.hint());
        }
    };
    auto has = [](const std::string& message, const char* part) {
        CAPTURE(message);
        CHECK(message.find(part) != std::string::npos);
    };
    input.skip_bad_lines = true;
    input.field = "none";
    const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
    has(complaint("a.jsonl", lines), "no text to learn from: all 2 lines were passed over, the first: ");
    has(complaint("a.jsonl", lines), "--field");
    has(complaint("a.txt", ""), "no text to learn from");
    has(complaint("b.txt", "\xff\xff"), "no text to learn from");
    has(complaint("b.jsonl", "{\"none\": \"\"}\n"), "no text to learn from");
    input.field = "text";
    CHECK(complaint("a.jsonl", lines) == "");
}
