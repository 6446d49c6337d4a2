// The certificate under context parallelism (certificate_test.h): rings, Ulysses and both, with data parallelism and
// every ZeRO stage.
#include "llmc/train/certificate_test.h"

using namespace certificate;

namespace {

Layout layout_of(int cp, int ulysses, int dp, int zero, int micro_batches = 1, int seq_len = 48, int heads = 3) {
    Layout layout{dp, zero, micro_batches};
    layout.cp = cp, layout.ulysses = ulysses;
    layout.seq_len = seq_len, layout.heads = heads;
    return layout;
}

// Layouts of one model and sequence length against one process.
void certify(const std::vector<Layout>& layouts, int steps) {
    Layout alone;
    alone.seq_len = layouts[0].seq_len, alone.heads = layouts[0].heads;
    const Result expected = Rank(alone).train(steps);
    const ParamTable table(model(alone));
    for (const Layout& layout : layouts) {
        REQUIRE((layout.seq_len == alone.seq_len && layout.heads == alone.heads));
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const Result found = rank.train(steps);
            require_same_everywhere(found, me);
            require_equal_copies(rank, me);
            const std::string story = difference(found, expected, table);
            me.require(story.empty(), story);
        });
    }
}

}   // namespace

TEST_CASE("certificate: a sample of rings, Ulysses and both x ZeRO x micro-batches") {
    certify({layout_of(2, 1, 1, 0), layout_of(3, 1, 1, 2, 2), layout_of(4, 1, 2, 1), layout_of(3, 3, 2, 3)}, 3);
    Layout recomputing = layout_of(4, 2, 1, 3, 2, 16, 4);
    recomputing.recompute = Recompute::block;
    certify({layout_of(2, 2, 1, 1, 2, 16, 4), recomputing, layout_of(8, 1, 1, 3, 1, 16, 4),
             layout_of(8, 4, 1, 2, 1, 16, 4)},
            3);
    certify({layout_of(2, 1, 2, 2, 1, 4, 4), layout_of(2, 2, 1, 0, 1, 4, 4)}, 2);   // the shortest sequences
}

namespace {

// Every mode of this many ranks, with dp 2 where that is at most 8, every ZeRO stage, short and long sequences.
void certify_all(int cp) {
    for (int seq_len : {2 * cp, 48, 256}) {
        if (seq_len % (2 * cp) != 0) continue;   // 256 over 3
        std::vector<Layout> layouts;
        for (int ulysses : {1, 2, 4, cp}) {
            if (cp % ulysses != 0 || (ulysses > 1 && ulysses < cp && cp < 4) || (ulysses == 4 && cp == 4)) continue;
            for (int dp : {1, 2}) {
                if (cp * dp > 8) continue;
                for (int zero : {0, 1, 2, 3}) layouts.push_back(layout_of(cp, ulysses, dp, zero, 1, seq_len, 24));
            }
        }
        certify(layouts, seq_len == 48 ? 20 : 4);
    }
}

}   // namespace

TEST_CASE("certificate: all modes, ZeRO 0-3, cp 2" * doctest::skip()) { certify_all(2); }
TEST_CASE("certificate: all modes, ZeRO 0-3, cp 3" * doctest::skip()) { certify_all(3); }
TEST_CASE("certificate: all modes, ZeRO 0-3, cp 4" * doctest::skip()) { certify_all(4); }
TEST_CASE("certificate: all modes, ZeRO 0-3, cp 8" * doctest::skip()) { certify_all(8); }
