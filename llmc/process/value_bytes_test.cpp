#include "llmc/process/value_bytes.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

#include "llmc/base/error.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

struct Pair {
    std::int64_t number;
    double real;
    friend bool operator==(const Pair&, const Pair&) = default;
};

}   // namespace

TEST_CASE("value bytes: values come back to the bit") {
    for (const double value : {0.0, 0.1, 1e-310, -1.0 / 3, std::numeric_limits<double>::infinity()})
        CHECK(value_of<double>(to_bytes(value)) == value);
    for (const int value :
         {0, -1, 10, 13, std::numeric_limits<int>::max()})   // zeros and ends of lines among the bytes
        CHECK(value_of<int>(to_bytes(value)) == value);
    const std::vector<Pair> pairs = {{1, 0.5}, {std::numeric_limits<std::int64_t>::min(), -0.1}};
    CHECK(values_of<Pair>(to_bytes(std::span<const Pair>(pairs))) == pairs);
    CHECK(values_of<Pair>("").empty());
}

TEST_CASE("value bytes: a number of bytes that the values do not have is refused") {
    const std::string bytes = to_bytes(7) + "x";
    CHECK_THROWS_AS(value_of<int>(bytes), Error);
    CHECK_THROWS_AS(values_of<int>(bytes), Error);
    CHECK_THROWS_AS(value_of<int>(""), Error);
    CHECK_THROWS_AS(value_of<int>(to_bytes(1.0)), Error);
}

TEST_CASE("value bytes: ranks exchange values by the rendezvous") {
    on_ranks(3, [](TestRank& rank) {
        const std::vector<double> own(static_cast<std::size_t>(rank.world.rank()), 0.1 * rank.world.rank());
        const auto by_rank = rank.world.gather_text(to_bytes(std::span<const double>(own)));
        for (std::size_t other = 0; other < by_rank.size(); other++) {
            const std::vector<double> found = values_of<double>(by_rank[other]);
            rank.require(found == std::vector<double>(other, 0.1 * static_cast<double>(other)), "rank ", other, "'s ",
                         found.size(), " values");
        }
        const int first = value_of<int>(rank.world.from_first(to_bytes(10 + rank.world.rank())));
        rank.require(first == 10, first, " of rank 0");
    });
}
