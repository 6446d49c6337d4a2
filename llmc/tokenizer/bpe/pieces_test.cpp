#include "llmc/tokenizer/bpe/pieces.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "llmc/tokenizer/bpe/cache.h"

namespace {

using Ids = std::vector<std::uint32_t>;

// All bytes, then tokens of two to four letters a to h: pieces have from one id to as many as bytes.
struct Model {
    std::vector<std::string> tokens;
    std::vector<std::uint8_t> is_special;
    std::vector<BpeMerge> merges;

    explicit Model(std::size_t size) {
        for (int byte = 0; byte < 256; byte++) tokens.push_back(std::string(1, static_cast<char>(byte)));
        for (char a = 'a'; a <= 'h'; a++) {
            for (char b = 'a'; b <= 'd'; b++) join(static_cast<unsigned char>(a), static_cast<unsigned char>(b));
        }
        const std::uint32_t pairs = static_cast<std::uint32_t>(tokens.size());
        for (std::uint32_t i = 256; i < pairs; i += 3) join(i, 'e'), join(i, 256 + i % 7);
        while (tokens.size() < size) tokens.push_back("unused " + std::to_string(tokens.size()));
        is_special.assign(tokens.size(), 0);
    }
    void join(std::uint32_t left, std::uint32_t right) {
        const std::uint32_t id = static_cast<std::uint32_t>(tokens.size());
        merges.push_back({left, right, id, static_cast<std::uint32_t>(merges.size())});
        tokens.push_back(tokens[left] + tokens[right]);
    }
};

// Few pieces often and many seldom; some differ only in zeros at their end, or in their length.
std::string random_piece(std::mt19937& random) {
    std::mt19937 same(random() % 4 == 0 ? random() % 400000 : random() % 300);
    std::string piece(1 + same() % (same() % 4 == 0 ? 70 : 16), '\0');
    for (char& c : piece) c = same() % 6 == 0 ? '\0' : static_cast<char>('a' + same() % 8);
    piece.resize(piece.size() + same() % 3, '\0');
    return piece;
}

}   // namespace

TEST_CASE("bpe_pieces: what is remembered is what the merges give, through many replacements") {
    for (std::size_t size : {1000, 70000}) {   // ids of 16 and of 32 bits
        const Model m(size);
        const BpeModel model(m.tokens, m.is_special, m.merges, false);
        const auto encoder = make_piece_encoder(model, {SplitRule::none, ""}, m.tokens.size());
        BpeModel::Scratch scratch;
        std::mt19937 random(1);
        std::size_t wrong = 0;
        for (int i = 0; i < 300000; i++) {
            const std::string piece = random_piece(random);
            Ids ids, expected;
            encoder->encode(piece, true, ids);
            model.encode(piece, scratch, expected);
            wrong += ids != expected;
        }
        CHECK(wrong == 0);
        const PieceCounts counts = encoder->counts();
        CHECK(counts.merged < counts.pieces / 2);
    }
}

TEST_CASE("bpe_pieces: a full cache gives a piece's own ids or nothing") {
    PieceCache<std::uint16_t, 2, 1, 1> cache;   // eight short entries
    std::mt19937 random(2);
    std::size_t found = 0, wrong = 0;
    for (int i = 0; i < 20000; i++) {
        const std::uint32_t number = random() % 40;
        const std::string piece = "p" + std::to_string(number);
        const ShortKey key = ShortKey::load_exactly(piece.data(), static_cast<std::uint32_t>(piece.size()));
        const std::size_t slot = cache.short_slot(key);
        const auto* known = cache.find(slot, key);
        if (known == nullptr) known = cache.find_second(slot, key);
        const std::uint32_t ids[] = {number, number + 100};
        if (known == nullptr) {
            cache.remember(slot, key, ids, 1 + number % 2);
        } else {
            found++;
            wrong += known->count() != 1 + number % 2 || known->ids[0] != number ||
                     (number % 2 == 1 && known->ids[1] != number + 100);
        }
    }
    CHECK(wrong == 0);
    CHECK(found > 1000);
}

TEST_CASE("bpe_pieces: full tables of longer pieces give a piece's own ids or nothing") {
    PieceCache<std::uint16_t, 1, 2, 2> cache;   // four entries each
    std::mt19937 random(3);
    std::size_t found = 0, wrong = 0;
    for (int i = 0; i < 20000; i++) {
        const std::uint32_t number = random() % 40;
        const std::string piece = std::string(1 + number % 7 * 10, 'p') + std::to_string(number);
        const std::size_t count = 1 + number % 31;
        Ids ids(count), known(cache.most_written);
        for (std::size_t j = 0; j < count; j++) ids[j] = number + static_cast<std::uint32_t>(1000 * j);
        const std::uint32_t* end = cache.write(hash64(piece), piece, known.data());
        if (end == nullptr) {
            cache.remember(hash64(piece), piece, ids.data(), count);
        } else {
            found++;
            known.resize(static_cast<std::size_t>(end - known.data()));
            wrong += known != ids;
        }
    }
    CHECK(wrong == 0);
    CHECK(found > 1000);
}

TEST_CASE("bpe_pieces: pieces of one hash are told apart by their length and all their bytes") {
    using namespace std::string_view_literals;
    PieceTable<PieceEntry<std::uint32_t, 64>> table(4);
    const std::uint64_t hash = 0x123456789abcdef0;
    const std::string_view pieces[] = {"piece\0"sv, "piece"sv, "piecf"sv, "piece\0\0"sv};
    for (std::uint32_t i = 0; i < 4; i++) table.remember(hash, pieces[i], &i, 1);
    for (std::uint32_t i = 0; i < 4; i++) {
        const auto* known = table.find(hash, pieces[i]);
        REQUIRE(known != nullptr);
        CHECK(known->ids[0] == i);
    }
    for (std::string_view other : {"piec"sv, "piecg"sv, "qiece"sv, "piece\0\0\0"sv}) {
        CHECK(table.find(hash, other) == nullptr);
    }
}

TEST_CASE("bpe_pieces: a batch of nothing but pieces of many ids finds room for them") {
    const Model m(1000);
    const BpeModel model(m.tokens, m.is_special, m.merges, false);
    const auto encoder = make_piece_encoder(model, {SplitRule::gpt2, ""}, m.tokens.size());
    for (std::size_t letters : {12, 14, 30}) {   // as many ids, for none of them join
        std::string text;
        Ids ids, expected;
        for (int i = 0; i < 2000; i++) text += " " + std::string(letters, 'z');
        for (char c : text) expected.push_back(static_cast<unsigned char>(c));
        encoder->encode(text, true, ids);
        CHECK(ids == expected);
    }
}
