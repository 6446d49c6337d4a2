#include <algorithm>
#include <string>

#include "dev/bench/algorithms/algorithms.h"
#include "dev/bench/collectives.h"
#include "llmc/process/sockets.h"

namespace {

// Returns how many ranks each host has, or 0 where that differs or one host has all.
int ranks_per_host(const std::vector<std::string>& hosts) {
    const auto first = std::ranges::count(hosts, hosts.front());
    const bool even =
        std::ranges::all_of(hosts, [&](const std::string& host) { return std::ranges::count(hosts, host) == first; });
    return even && first < std::ssize(hosts) ? static_cast<int>(first) : 0;
}

}   // namespace

std::vector<CollectiveTime> measure_algorithms(World& world, std::size_t most_bytes, int repeats, Arena& arena,
                                               cudaStream_t stream) {
    const auto data = arena.allocate<float>("collectives/data", most_bytes / sizeof(float));
    data.zero(stream);
    const int ranks = world.ranks();
    const std::vector<std::string> hosts = world.gather_text(own_host_identity());
    const int per_host = ranks_per_host(hosts);
    const bool one_host = std::ranges::count(hosts, hosts.front()) == ranks;
    std::vector<CollectiveTime> times;
    for (const AllReduceAlgorithm& algorithm : all_reduce_algorithms(std::max(per_host, 1))) {
        if (per_host == 0 && std::string(algorithm.name) == "two-level") continue;
        for (const std::size_t count : counts_for(static_cast<std::size_t>(ranks), most_bytes)) {
            Peers peers(*world.all(), data.data(), count, arena, stream);
            const double seconds = seconds_of(
                world, [&] { algorithm.run(peers); }, repeats, stream);
            times.push_back({"all, by algorithm", algorithm.name, ranks, one_host,
                             static_cast<double>(count * sizeof(float)), seconds, 2 * (ranks - 1.0) / ranks});
        }
    }
    take_slowest(world, times);
    return times;
}
