#include "llmc/mesh/context_cut.h"

#include <doctest/doctest.h>

#include <numeric>

namespace {

// (query, key) pairs that a causal mask leaves to the rank with these queries.
std::int64_t unmasked_pairs(const std::vector<TokenRange>& queries) {
    std::int64_t pairs = 0;
    for (int position : token_positions(queries)) pairs += position + 1;
    return pairs;
}

std::vector<int> divisors(int n) {
    std::vector<int> found;
    for (int d = 1; d <= n; d++) {
        if (n % d == 0) found.push_back(d);
    }
    return found;
}

}   // namespace

TEST_CASE("context cut: ranks share all tokens, each in order, equally") {
    for (int cp = 1; cp <= 16; cp++) {
        for (int ulysses : divisors(cp)) {
            for (std::int64_t T : {2 * cp, 6 * cp, 14 * cp}) {
                std::vector<int> seen(static_cast<std::size_t>(T), 0);
                for (int rank = 0; rank < cp; rank++) {
                    const ContextCut cut{cp, ulysses, rank};
                    const std::vector<TokenRange> ranges = token_ranges(cut, T);
                    CHECK(ranges.size() <= 2);
                    const std::vector<int> positions = token_positions(ranges);
                    CHECK(std::ssize(positions) == T / cp);
                    CHECK(std::is_sorted(positions.begin(), positions.end()));
                    for (int position : positions) seen[static_cast<std::size_t>(position)]++;
                }
                CHECK(seen == std::vector<int>(static_cast<std::size_t>(T), 1));
            }
        }
    }
}

TEST_CASE("context cut: the members of a Ulysses group together have their ring rank's two slices, in order") {
    for (int cp : {2, 3, 4, 6, 8, 12}) {
        for (int ulysses : divisors(cp)) {
            for (int rank = 0; rank < cp; rank++) {
                const ContextCut cut{cp, ulysses, rank};
                const std::int64_t T = 6 * cp;
                std::vector<int> together;
                for (int member : cut.ulysses_members()) {
                    const std::vector<int> own = token_positions(token_ranges({cp, ulysses, member}, T));
                    together.insert(together.end(), own.begin(), own.end());
                }
                CHECK(together == token_positions(zigzag_ranges(cut.ring_size(), cut.ring_rank(), T)));
                CHECK(cut.ulysses_members()[static_cast<std::size_t>(cut.ulysses_rank())] == rank);
                CHECK(cut.ring_members()[static_cast<std::size_t>(cut.ring_rank())] == rank);
            }
        }
    }
}

TEST_CASE("context cut: unmasked pairs are exactly equal on all ranks of a ring, which those of a plain cut are not") {
    for (int n = 2; n <= 16; n++) {
        for (std::int64_t T : {2 * n, 10 * n, 64 * n}) {
            const std::int64_t mean_times_n = T * (T + 1) / 2;
            std::int64_t most_of_plain_cut = 0;
            for (int rank = 0; rank < n; rank++) {
                CHECK(unmasked_pairs(zigzag_ranges(n, rank, T)) * n == mean_times_n);
                most_of_plain_cut = std::max(most_of_plain_cut, unmasked_pairs({{T / n * rank, T / n}}));
            }
            // close to 2 - 1/n of the mean
            CHECK(static_cast<double>(most_of_plain_cut * n) / static_cast<double>(mean_times_n) >
                  (2.0 - 1.0 / n) * (1 - 1.0 / static_cast<double>(T)));
        }
    }
}

TEST_CASE("context cut: a sequence that is no multiple of 2 cp tokens is refused") {
    CHECK_THROWS(token_ranges({2, 1, 0}, 6));
    CHECK_THROWS(token_ranges({2, 2, 0}, 7));
    CHECK(token_positions(token_ranges({}, 7)).size() == 7);   // a rank alone has all of any number
    CHECK(token_positions(attended_ranges({}, 7)).size() == 7);
}

TEST_CASE("context cut: a rank's values out of a whole sequence's") {
    std::vector<int> whole(16), own(4);
    std::iota(whole.begin(), whole.end(), 0);
    const std::vector<TokenRange> ranges = token_ranges({4, 1, 1}, 16);
    take_ranges(std::span(own), std::span<const int>(whole), ranges);
    CHECK(own == std::vector<int>{2, 3, 12, 13});
    CHECK(own == token_positions(ranges));
}
