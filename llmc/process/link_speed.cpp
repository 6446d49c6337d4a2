#include "llmc/process/link_speed.h"

#include <algorithm>

#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/process/value_bytes.h"

namespace {

constexpr std::size_t small = 2, large = std::size_t{1} << 21;   // floats: 8 bytes, 8 MiB
constexpr int small_repeats = 20, large_repeats = 4;

class Measurement {
public:
    Measurement(World& world, Arena& arena, cudaStream_t stream)
        : world_(world), stream_(stream), data_(arena.allocate<float>("links/message", large)) {
        data_.zero(stream);
    }

    // Returns the seconds of a message one way.
    double message(int peer, std::size_t count, int repeats) {
        auto there_and_back = [&] {
            Communicator& all = *world_.all();
            for (const bool sends : {world_.rank() < peer, world_.rank() > peer}) {
                if (sends) all.send(data_.data(), count, peer, stream_);
                if (!sends) all.receive(data_.data(), count, peer, stream_);
            }
        };
        return timed(there_and_back, repeats) / 2;
    }
    double all_reduce(Communicator& group, std::size_t count, int repeats) {
        return timed([&] { group.all_reduce(data_.data(), count, ReduceOp::sum, stream_); }, repeats);
    }

private:
    // Returns the seconds of one work(). A first one, not counted, brings the ranks together.
    template <class Work>
    double timed(Work&& work, int repeats) {
        wait_for(work, 1);
        const double start = steady_seconds();
        wait_for(work, repeats);
        return (steady_seconds() - start) / repeats;
    }
    template <class Work>
    void wait_for(Work&& work, int repeats) {
        for (int i = 0; i < repeats; i++) work();
        world_.will_wait();
        ::wait_for(stream_);
        world_.has_waited();
    }

    World& world_;
    cudaStream_t stream_;
    DeviceBuffer<float> data_;
};

}   // namespace

int partner_of(int rank, int ranks, int round) {
    const int last = link_rounds(ranks);   // odd; with an odd number of ranks, no rank has this number
    auto other = [&](int i) { return ((round - i) % last + last) % last; };
    int partner = last;
    if (rank < last) {
        partner = other(rank) == rank ? last : other(rank);
    } else {
        for (partner = 0; other(partner) != partner;) partner++;
    }
    return partner < ranks ? partner : -1;
}

LinkSpeeds measure_links(World& world, Arena& arena, cudaStream_t stream) {
    if (world.ranks() == 1) return {};
    Measurement measurement(world, arena, stream);
    struct Measured {
        int rank, peer;
        Axis axis;   // the group varies along it
        double seconds, bytes_per_second;
    };
    std::vector<Measured> measured;
    for (int round = 0; round < link_rounds(world.ranks()); round++) {
        const int peer = partner_of(world.rank(), world.ranks(), round);
        if (peer < 0) continue;
        const double latency = measurement.message(peer, small, small_repeats);
        const double large_one = measurement.message(peer, large, large_repeats);
        if (world.rank() > peer) continue;   // the lower rank reports
        measured.push_back({world.rank(), peer, {}, latency, large * sizeof(float) / large_one});
    }
    for (const Axis axis : {Axis::dp, Axis::cp, Axis::tp, Axis::pp}) {
        Communicator* const group = world.group({axis});
        if (group == nullptr) continue;
        const double latency = measurement.all_reduce(*group, small, small_repeats);
        const double large_one = measurement.all_reduce(*group, large, large_repeats);
        const double sent = 2.0 * (group->size() - 1) / group->size() * large * sizeof(float);
        if (group->rank() == 0) measured.push_back({world.rank(), -1, axis, latency, sent / large_one});
    }
    LinkSpeeds speeds;
    for (const std::string& of_rank : world.gather_text(to_bytes(std::span<const Measured>(measured)))) {
        for (const Measured& found : values_of<Measured>(of_rank)) {
            const bool is_pair = found.peer >= 0;
            const std::string group = is_pair ? std::string() : group_name(world.mesh(), {found.axis});
            (is_pair ? speeds.pairs : speeds.groups)
                .push_back({found.rank, found.peer, group, found.seconds, found.bytes_per_second});
        }
    }
    auto slower = [](const LinkSpeed& a, const LinkSpeed& b) { return a.bytes_per_second < b.bytes_per_second; };
    std::ranges::sort(speeds.pairs, slower);
    std::ranges::sort(speeds.groups, slower);
    return speeds;
}

std::string name_of(const LinkSpeed& link) {
    return link.group.empty() ? text("ranks ", link.rank, " and ", link.peer)
                              : text("group ", link.group, " of rank ", link.rank);
}

std::string link_table(const LinkSpeeds& speeds, std::size_t most) {
    std::string table = formatted("  %-28s %12s %12s\n", "between", "latency, us", "GB/s");
    auto row = [&](const LinkSpeed& link) {
        table += formatted("  %-28s %12.1f %12.3f\n", name_of(link).c_str(), 1e6 * link.seconds,
                           1e-9 * link.bytes_per_second);
    };
    for (std::size_t i = 0; i < std::min(most, speeds.pairs.size()); i++) row(speeds.pairs[i]);
    if (speeds.pairs.size() > most) table += text("  and ", speeds.pairs.size() - most, " faster pairs\n");
    std::vector<std::string> told;   // names of groups
    for (const LinkSpeed& group : speeds.groups) {
        if (std::ranges::find(told, group.group) != told.end()) continue;   // the slowest comes first
        told.push_back(group.group);
        row(group);
    }
    return table;
}
