#include "llmc/tokenizer/bpe/bpe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

namespace {

// A random vocabulary: all bytes, then tokens each made of two earlier ones over a small alphabet.
struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<std::uint8_t> is_special;
    std::vector<BpeMerge> merges;
};

Vocabulary random_vocabulary(std::mt19937& random, std::uint32_t merges) {
    Vocabulary v;
    for (int byte = 0; byte < 256; byte++) v.tokens.push_back(std::string(1, static_cast<char>(byte)));
    auto pick = [&] {
        return random() % 3 > 0 && v.tokens.size() > 256 ? 256 + random() % (v.tokens.size() - 256)
                                                         : 'a' + random() % 3;
    };
    while (v.merges.size() < merges) {
        std::uint32_t left = static_cast<std::uint32_t>(pick()), right = static_cast<std::uint32_t>(pick());
        std::string bytes = v.tokens[left] + v.tokens[right];
        if (bytes.size() > 12 || std::find(v.tokens.begin(), v.tokens.end(), bytes) != v.tokens.end()) continue;
        std::uint32_t id = static_cast<std::uint32_t>(v.tokens.size());
        v.merges.push_back({left, right, id, static_cast<std::uint32_t>(v.merges.size())});
        v.tokens.push_back(bytes);
    }
    v.is_special.assign(v.tokens.size(), 0);
    return v;
}

// The definition, word for word: find the pair of lowest priority, the leftmost of equals; join it; again.
std::vector<std::uint32_t> plain_bpe(const std::vector<BpeMerge>& merges, const std::string& piece) {
    std::vector<std::uint32_t> ids;
    for (char byte : piece) ids.push_back(static_cast<unsigned char>(byte));
    while (true) {
        const BpeMerge* best = nullptr;
        std::size_t at = 0;
        for (std::size_t i = 0; i + 1 < ids.size(); i++) {
            for (const BpeMerge& merge : merges) {
                if (merge.left != ids[i] || merge.right != ids[i + 1]) continue;
                if (best == nullptr || merge.priority < best->priority) {
                    best = &merge;
                    at = i;
                }
            }
        }
        if (best == nullptr) return ids;
        ids[at] = best->result;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
}

std::string random_piece(std::mt19937& random, std::size_t length) {
    std::string piece;
    while (piece.size() < length) piece += static_cast<char>(random() % 20 == 0 ? random() % 256 : 'a' + random() % 3);
    return piece;
}

}   // namespace

TEST_CASE("bpe: short and long pieces against the definition") {
    std::mt19937 random(3);
    for (int round = 0; round < 6; round++) {
        Vocabulary v = random_vocabulary(random, 80);
        std::vector<BpeMerge> merges =
            round % 2 == 0 ? v.merges : all_merges(v.tokens, std::vector<std::uint8_t>(v.tokens.size()));
        BpeModel model(v.tokens, v.is_special, merges, false);
        BpeModel::Scratch scratch;
        for (std::size_t length = 1; length <= 300; length += length < 70 ? 1 : 23) {
            std::string piece = random_piece(random, length);
            std::vector<std::uint32_t> ids;
            model.encode(piece, scratch, ids);
            CHECK(ids == plain_bpe(merges, piece));
        }
    }
}

TEST_CASE("bpe: nothing joins across the ends of a piece, whatever ids there are") {
    for (const std::uint32_t size : {65535u, 65536u, 65537u}) {
        std::vector<std::string> tokens;
        for (int byte = 0; byte < 256; byte++) tokens.push_back(std::string(1, static_cast<char>(byte)));
        tokens.insert(tokens.end(), {"xab", "abxab", "abab"});
        while (tokens.size() + 1 < size) tokens.push_back("unused " + std::to_string(tokens.size()));
        tokens.push_back("ab");
        const std::uint32_t last = size - 1;
        const std::vector<BpeMerge> merges{
            {'a', 'b', last, 0}, {'x', last, 256, 1}, {last, 256, 257, 2}, {last, last, 258, 3}};
        const BpeModel model(tokens, std::vector<std::uint8_t>(size), merges, false);
        BpeModel::Scratch scratch;
        for (const char* piece : {"x", "xx", "ab", "xab", "abx", "xabx", "abxab", "ba", "abab"}) {
            std::vector<std::uint32_t> ids;
            model.encode(piece, scratch, ids);
            CHECK(ids == plain_bpe(merges, piece));
        }
    }
}

TEST_CASE("bpe: a long piece takes no quadratic time") {
    std::mt19937 random(4);
    Vocabulary v = random_vocabulary(random, 80);
    BpeModel model(v.tokens, v.is_special, v.merges, false);
    BpeModel::Scratch scratch;
    std::vector<std::uint32_t> ids;
    std::string piece = random_piece(random, 1 << 20);   // would take hours
    model.encode(piece, scratch, ids);
    std::string back;
    for (std::uint32_t id : ids) back += v.tokens[id];
    CHECK(back == piece);
}

TEST_CASE("bpe: whole pieces first, and what is special is never made from text") {
    std::mt19937 random(5);
    Vocabulary v = random_vocabulary(random, 10);
    std::string word = v.tokens[260] + "zz";
    v.tokens.push_back(word);      // no merge makes it
    v.tokens.push_back("<end>");   // special
    v.is_special.assign(v.tokens.size(), 0);
    v.is_special.back() = 1;
    BpeModel::Scratch scratch;
    std::vector<std::uint32_t> ids;
    BpeModel(v.tokens, v.is_special, v.merges, true).encode(word, scratch, ids);
    CHECK(ids == std::vector<std::uint32_t>{266});
    ids.clear();
    BpeModel(v.tokens, v.is_special, v.merges, false).encode(word, scratch, ids);
    CHECK(ids.size() >= 3);
    ids.clear();
    BpeModel(v.tokens, v.is_special, v.merges, true).encode("<end>", scratch, ids);
    CHECK(ids.size() == 5);
}

TEST_CASE("bpe: ids need not follow the order of merges") {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; byte++) tokens.push_back(std::string(1, static_cast<char>(byte)));
    tokens.push_back("bc");
    tokens.push_back("ab");
    const std::vector<std::uint8_t> is_special(tokens.size(), 0);
    const BpeModel model(tokens, is_special, {{'a', 'b', 257, 0}, {'b', 'c', 256, 1}}, false);
    BpeModel::Scratch scratch;
    std::vector<std::uint32_t> ids;
    model.encode("abcbc", scratch, ids);
    CHECK(ids == std::vector<std::uint32_t>{257, 'c', 256});
}

TEST_CASE("bpe: a byte without a token is left out, so what stood beside it may join, or becomes the unknown token") {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; byte++) tokens.push_back(std::string(1, static_cast<char>(byte)));
    tokens['x'] = "";
    tokens['y'] = "";
    tokens.push_back("ab");
    const std::vector<std::uint8_t> is_special(tokens.size(), 0);
    const auto encode = [&](std::optional<UnknownByte> unknown, const std::string& piece) {
        BpeModel::Scratch scratch;
        std::vector<std::uint32_t> ids;
        BpeModel(tokens, is_special, {{'a', 'b', 256, 0}}, false, unknown).encode(piece, scratch, ids);
        return ids;
    };
    using Ids = std::vector<std::uint32_t>;
    CHECK(encode(std::nullopt, "axyb") == Ids{256});
    CHECK(encode(std::nullopt, "x") == Ids{});
    CHECK(encode(UnknownByte{7, false}, "axybx") == Ids{'a', 7, 7, 'b', 7});
    CHECK(encode(UnknownByte{7, true}, "axybx") == Ids{'a', 7, 'b', 7});
}
