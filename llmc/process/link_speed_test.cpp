#include "llmc/process/link_speed.h"

#include <doctest/doctest.h>

#include <set>

#include "llmc/process/on_ranks_testing.h"

TEST_CASE("link speed: every pair of ranks meets once, and both know it") {
    for (int ranks = 2; ranks <= 17; ranks++) {
        std::set<std::pair<int, int>> met;
        for (int round = 0; round < link_rounds(ranks); round++) {
            for (int rank = 0; rank < ranks; rank++) {
                const int partner = partner_of(rank, ranks, round);
                if (partner < 0) continue;
                REQUIRE(partner != rank);
                CHECK(partner_of(partner, ranks, round) == rank);
                if (rank < partner) CHECK(met.insert({rank, partner}).second);
            }
        }
        CHECK(static_cast<int>(met.size()) == ranks * (ranks - 1) / 2);
    }
}

TEST_CASE("link speed: every pair and every axis of a mesh is measured, the slowest first") {
    on_ranks(MeshShape{1, 2, 1, 2}, [](TestRank& rank) {
        const LinkSpeeds speeds = measure_links(rank.world, rank.arena, rank.stream);
        ENSURE(speeds.pairs.size() == 6 && speeds.groups.size() == 4, speeds.pairs.size(), " pairs, ",
               speeds.groups.size(), " groups");
        for (const LinkSpeed& link : speeds.pairs) {
            ENSURE(link.seconds > 0 && link.bytes_per_second >= speeds.pairs.front().bytes_per_second, name_of(link));
        }
    });
}

TEST_CASE("link speed: the table names the slowest pairs, and an axis once") {
    LinkSpeeds speeds;
    for (int i = 0; i < 5; i++) speeds.pairs.push_back({0, i + 1, "", 1e-6, (i + 1) * 1e9});
    speeds.groups = {{2, -1, "tp", 2e-6, 1e9}, {0, -1, "tp", 2e-6, 3e9}};
    const std::string table = link_table(speeds, 2);
    CHECK(table.find("ranks 0 and 2") != std::string::npos);
    CHECK(table.find("ranks 0 and 3") == std::string::npos);
    CHECK(table.find("and 3 faster pairs") != std::string::npos);
    CHECK(table.find("tp of rank 2") != std::string::npos);
    CHECK(table.find("tp of rank 0") == std::string::npos);
}
