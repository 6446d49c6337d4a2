// Which all-reduce is the fastest where links have two speeds, on the virtual clock.
#include <map>

#include "dev/bench/algorithms/algorithms.h"
#include "llmc/base/log.h"
#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr std::size_t count = 720;

// What every rank asks for, of a short vector: the clock's bytes are scaled to others.
std::vector<host::Recording> recorded(const AllReduceAlgorithm& algorithm, int ranks) {
    std::vector<host::Recording> recordings(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](TestRank& me) {
        const DeviceBuffer<float> data = me.on_device(std::vector<float>(count));
        Peers peers(me.all, data.data(), count, me.arena, me.stream);
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] { algorithm.run(peers); });
        CUDA_CHECK(cudaDeviceSynchronize());
    });
    return recordings;
}

}   // namespace

// Two nodes of eight: 450 GB/s inside, 50 GB/s between nodes, 5 us an exchange. Vectors from 8 bytes to 1 GiB.
TEST_CASE("algorithms: which wins where, on links of two speeds (modelled)") {
    if (!ranks_are_threads()) return;
    constexpr int ranks = 16;
    host::CostModel costs;
    costs.seconds_per_exchange = 5e-6;
    costs.ranks_per_node = 8;
    std::map<std::string, std::vector<double>> microseconds;   // by algorithm, of each size
    const std::vector<double> sizes = {8, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 30};
    for (const AllReduceAlgorithm& algorithm : all_reduce_algorithms(8)) {
        const std::vector<host::Recording> recordings = recorded(algorithm, ranks);
        for (const double size : sizes) {
            const double scale = size / (count * sizeof(float));
            costs.seconds_per_exchanged_byte = scale / 450e9;
            costs.seconds_per_exchanged_byte_between_nodes = scale / 50e9;
            costs.seconds_per_byte = scale / 3e12;
            microseconds[algorithm.name].push_back(host::replay(recordings, costs).seconds * 1e6);
        }
    }
    std::string table;
    for (const auto& [name, times] : microseconds) {
        table += formatted("%-28s", name.c_str());
        for (const double time : times) table += formatted(" %11.1f", time);
        table += "\n";
    }
    MESSAGE("microseconds of 8 B, 1 KiB, 16 KiB, 128 KiB, 1 MiB, 8 MiB, 64 MiB, 1 GiB, 16 ranks:\n" << table);
    const std::size_t tiny = 0, huge = sizes.size() - 1;
    auto at = [&](const char* name, std::size_t size) { return microseconds.at(name)[size]; };
    CHECK(at("tree", tiny) < at("ring", tiny));
    CHECK(at("naive", tiny) < at("tree", tiny));
    CHECK(at("ring", huge) < at("naive", huge));
    CHECK(at("ring", huge) < at("tree", huge));
    CHECK(at("two-level", huge) < at("halving-doubling", huge));
    CHECK(at("two-level", huge) < at("ring", huge));
}
