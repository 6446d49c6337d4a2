// Algorithms of all-reduce: steps and bytes as theory has them, sums right to the bit.
#include "dev/bench/algorithms/algorithms.h"

#include "llmc/base/rng.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

int node_of(int ranks) {   // the largest divisor of so many ranks that is no more than its root
    int result = 1;
    for (int g = 2; g * g <= ranks; g++) {
        if (ranks % g == 0) result = g;
    }
    return result;
}

// Between -1/2 and 1/2; with a scale, whole numbers up to half of that, whose sums are exact in any order.
float value(int rank, std::size_t i, float scale = 1) {
    const float x = static_cast<float>(mix64(i * 64 + static_cast<std::size_t>(rank)) >> 40) * 0x1p-24f - 0.5f;
    return scale == 1 ? x : std::round(x * scale);
}
std::vector<float> vector_of(int rank, std::size_t count, float scale) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; i++) values[i] = value(rank, i, scale);
    return values;
}

// What an algorithm leaves on every rank, which must be the same, and how each rank came to it.
struct Reduced {
    std::vector<float> sum;
    std::vector<int> steps;
    std::vector<std::vector<double>> sent;   // of each rank to each, in vectors
};
std::vector<Reduced> reduced(const std::vector<AllReduceAlgorithm>& algorithms, int ranks, std::size_t count,
                             float scale = 1) {
    const auto n = static_cast<std::size_t>(ranks);
    std::vector<Reduced> results(algorithms.size(), {{}, std::vector<int>(n), std::vector<std::vector<double>>(n)});
    std::vector<std::vector<std::vector<float>>> sums(algorithms.size(), std::vector<std::vector<float>>(n));
    on_ranks(ranks, [&](TestRank& me) {
        const auto rank = static_cast<std::size_t>(me.rank());
        for (std::size_t a = 0; a < algorithms.size(); a++) {
            const DeviceBuffer<float> data = me.on_device(vector_of(me.rank(), count, scale));
            Peers peers(me.all, data.data(), count, me.arena, me.stream);
            algorithms[a].run(peers);
            sums[a][rank] = data.download(me.stream);
            results[a].steps[rank] = peers.steps();
            for (const double sent : peers.sent()) {
                results[a].sent[rank].push_back(sent / static_cast<double>(count));
            }
        }
    });
    for (std::size_t a = 0; a < algorithms.size(); a++) {
        INFO(std::string(algorithms[a].name), ", ", ranks, " ranks");
        for (const auto& sum : sums[a]) CHECK((sum == sums[a][0]));
        results[a].sum = sums[a][0];
    }
    return results;
}

double total(const std::vector<double>& parts) {
    double sum = 0;
    for (const double part : parts) sum += part;
    return sum;
}

}   // namespace

TEST_CASE("algorithms: steps and bytes of every all-reduce are those of theory, 2 to 16 ranks, and sums are exact") {
    if (!ranks_are_threads()) return;
    constexpr std::size_t count = 5040;
    for (int ranks = 2; ranks <= 16; ranks++) {
        const std::vector<AllReduceAlgorithm> algorithms = all_reduce_algorithms(node_of(ranks));
        const std::vector<Reduced> results = reduced(algorithms, ranks, count, 1000);
        std::vector<float> right(count, 0.0f);
        for (std::size_t i = 0; i < count; i++) {
            for (int rank = 0; rank < ranks; rank++) right[i] += value(rank, i, 1000);
        }
        for (std::size_t a = 0; a < algorithms.size(); a++) {
            INFO(std::string(algorithms[a].name), ", ", ranks, " ranks");
            CHECK((results[a].sum == right));
            for (const int steps : results[a].steps) CHECK(steps == algorithms[a].steps(ranks));
            double most = 0;
            for (const auto& sent : results[a].sent) most = std::max(most, total(sent));
            // sizes of pieces differ by an element: at most one in every message
            const double uneven = std::max(algorithms[a].steps(ranks), 2 * ranks) / static_cast<double>(count);
            CHECK(most == doctest::Approx(algorithms[a].most_sent(ranks)).epsilon(uneven));
        }
    }
}

TEST_CASE("algorithms: what eight ranks send, to the element") {
    if (!ranks_are_threads()) return;
    const std::vector<AllReduceAlgorithm> algorithms = all_reduce_algorithms(4);
    const std::vector<Reduced> results = reduced(algorithms, 8, 720);
    for (std::size_t a = 0; a < algorithms.size(); a++) {
        const std::string name = algorithms[a].name;
        INFO(name);
        const std::vector<std::vector<double>>& sent = results[a].sent;
        const int steps = results[a].steps[0];
        double most = 0, received = 0;   // received: by rank 0
        for (const auto& of_rank : sent) most = std::max(most, total(of_rank)), received += of_rank[0];
        if (name == "naive") CHECK((steps == 2 && most == 7 && received == 7));
        if (name == "ring") CHECK((steps == 14 && most == 1.75 && received == 1.75));
        if (name == "halving-doubling") CHECK((steps == 6 && most == 1.75 && received == 1.75));
        if (name == "parameter server, all ranks") CHECK((steps == 2 && most == 1.75));
        if (name == "tree") CHECK((steps == 6 && most == 3));
        if (name == "double binary tree") CHECK((steps == 13 && most == 2));
        // of a two-level reduction's 1.75 M only a quarter goes to the other node
        if (name == "two-level") CHECK((steps == 8 && most == 1.75 && sent[0][4] == 0.25));
    }
}

TEST_CASE("algorithms: sums are made in the order that each states, to the bit") {
    if (!ranks_are_threads()) return;
    constexpr int ranks = 5;
    constexpr std::size_t count = 1003;
    const std::vector<AllReduceAlgorithm> algorithms = all_reduce_algorithms(1);
    const std::vector<Reduced> results = reduced(algorithms, ranks, count);
    for (std::size_t a = 0; a < algorithms.size(); a++) {
        const std::string name = algorithms[a].name;
        const bool ring = name == "ring", server = name == "parameter server, all ranks";
        if (!ring && !server && name != "naive") continue;
        INFO(name);
        std::vector<float> right(count);
        for (int index = 0; index < ranks; index++) {
            const Piece piece = piece_of({0, count}, ranks, index);
            for (std::size_t i = piece.first; i < piece.first + piece.count; i++) {
                const int first = ring || server ? index : 0;
                right[i] = value(first, i);
                for (int k = 1; k < ranks; k++) {
                    const int other = k <= first ? k - 1 : k;   // all but the first, in order
                    right[i] += value(ring ? (first + k) % ranks : other, i);
                }
            }
        }
        CHECK((results[a].sum == right));
    }
}
