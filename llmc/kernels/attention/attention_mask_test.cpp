#include "llmc/kernels/attention/attention_mask.h"

#include <doctest/doctest.h>

#include <vector>

#include "llmc/kernels/attention/attention_reference_testing.h"

namespace {

// Calls check(shape) with masks of every kind: square, wide and high, causal from any offset, full, with documents.
template <class Check>
void for_masks(Check check) {
    for (const auto& [Tq, Tk] : {std::pair{1, 1}, {6, 6}, {9, 4}, {4, 9}}) {
        AttentionShape shape = self_attention_shape(2, Tq, 1, 8);
        shape.Tk = Tk;
        const std::vector<int> none(2 * static_cast<std::size_t>(Tq), 0);
        std::vector<int> some;
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < Tq; i++) some.push_back(b == 0 ? i / 3 * 3 : i / 2);   // the last may be past Tk
        for (const int* const first :
             {static_cast<const int*>(nullptr), none.data(), static_cast<const int*>(some.data())}) {
            shape.documents = FirstKeys{first, Tq};
            shape.causal = false;
            check(shape);
            shape.causal = true;
            for (const int offset : {0, 1, -1, 3, -3, 20, -20}) {
                shape.q0 = 50 + offset, shape.k0 = 50;
                check(shape);
            }
            shape.q0 = std::int64_t{1} << 40, shape.k0 = 0;
            check(shape);
            std::swap(shape.q0, shape.k0);
            check(shape);
            shape.q0 = shape.k0 = 0;
        }
    }
}

// Calls check(tile, seen) with every tile of the scores, and how many of its pairs the reference sees.
template <class Check>
void for_tiles(const AttentionShape& shape, int batch, Check check) {
    for (int q = 0; q < shape.Tq; q++)
        for (int k = 0; k < shape.Tk; k++) {
            for (int queries = 1; q + queries <= shape.Tq; queries++)
                for (int keys = 1; k + keys <= shape.Tk; keys++) {
                    int seen = 0;
                    for (int i = q; i < q + queries; i++)
                        for (int j = k; j < k + keys; j++) seen += attention_reference::sees(shape, batch, i, j);
                    check(ScoreTile{q, queries, k, keys}, seen);
                }
        }
}

}   // namespace

TEST_CASE("attention mask: it sees what the reference sees") {
    for_masks([](const AttentionShape& shape) {
        for (int b = 0; b < shape.B; b++) {
            const AttentionMask mask = attention_mask<true>(shape, b);
            int pairs = 0;
            for (int i = 0; i < shape.Tq; i++) {
                pairs += std::max(0, mask.end(i) - mask.begin(i));
                for (int j = 0; j < shape.Tk; j++) {
                    const bool seen = attention_reference::sees(shape, b, i, j);
                    pairs -= seen;
                    CHECK(mask.sees(i, j) == seen);
                }
            }
            CHECK(pairs == 0);   // between its bounds a query sees every key
        }
    });
}

TEST_CASE("attention mask: tiles that are skipped or not masked are none or whole") {
    for_masks([](const AttentionShape& shape) {
        for (int b = 0; b < shape.B; b++) {
            const AttentionMask mask = attention_mask<true>(shape, b);
            for_tiles(shape, b, [&](const ScoreTile& tile, int seen) {
                CHECK(mask.sees_all(tile) == (seen == tile.queries * tile.keys));
                if (mask.sees_none(tile)) CHECK(seen == 0);
                if (tile.queries == 1 && seen == 0 && mask.begin(tile.first_query) < mask.end(tile.first_query))
                    CHECK(mask.sees_none(tile));
                if (seen == 0) return;
                // the loops over tiles of keys, and over tiles of queries, come to this one
                CHECK(mask.begin(tile.first_query) < tile.first_key + tile.keys);
                CHECK(tile.first_key < mask.end(tile.first_query + tile.queries - 1));
                CHECK(mask.first_query(tile.first_key) < tile.first_query + tile.queries);
                CHECK(tile.first_query < mask.query_end(tile.first_key + tile.keys));
            });
        }
    });
}

TEST_CASE("attention mask: the first and the last query of a tile of keys are the nearest ones that see it") {
    for_masks([](const AttentionShape& shape) {
        for (int b = 0; b < shape.B; b++) {
            const AttentionMask mask = attention_mask<true>(shape, b);
            for (int key = 0; key < shape.Tk; key++) {
                int first = 0, end = shape.Tq;
                while (first < shape.Tq && mask.end(first) <= key) first++;
                while (end > 0 && mask.begin(end - 1) >= key + 1) end--;
                CHECK(std::min(mask.first_query(key), shape.Tq) == first);
                CHECK(mask.query_end(key + 1) == end);
            }
        }
    });
}

TEST_CASE("attention mask: full and triangular ones are known, and documents are neither") {
    AttentionShape shape = self_attention_shape(1, 5, 1, 8);
    CHECK(attention_mask<false>(shape, 0).is_triangle());
    CHECK_FALSE(attention_mask<false>(shape, 0).is_full());
    shape.q0 = 4;   // the first query is at the last key
    CHECK(attention_mask<false>(shape, 0).is_full());
    shape.q0 = 3;
    CHECK_FALSE(attention_mask<false>(shape, 0).is_full());
    CHECK_FALSE(attention_mask<false>(shape, 0).is_triangle());
    shape.causal = false;
    CHECK(attention_mask<false>(shape, 0).is_full());
    const std::vector<int> first = {0, 0, 2, 2, 2};
    shape.documents = {first.data(), 5};
    CHECK_FALSE(attention_mask<true>(shape, 0).is_full());
    shape.causal = true, shape.q0 = 0;
    CHECK_FALSE(attention_mask<true>(shape, 0).is_triangle());
}

TEST_CASE("attention mask: rows of tiles past the last query repeat its first key") {
    const std::vector<int> first = {0, 2, 2, -1};   // the last belongs to no query
    AttentionShape shape = self_attention_shape(1, 3, 1, 8);
    shape.documents = {first.data(), 3};
    const AttentionMask mask = attention_mask<true>(shape, 0);
    CHECK(mask.begin(3) == 2);
    CHECK(mask.begin(60) == 2);
    CHECK_FALSE(mask.sees_all({0, 64, 0, 1}));
}
