#include "dev/bench/collectives.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/process/sockets.h"
#include "llmc/report/curves.h"

namespace {

// A collective over `count` floats of the whole vector, a multiple of the number of ranks.
struct Collective {
    const char* name;
    std::function<double(int ranks)> bus_factor;
    std::function<void(Communicator&, float* out, float* in, std::size_t count, cudaStream_t)> run;
};

std::vector<Collective> collectives() {
    auto part = [](int n) { return (n - 1.0) / n; };
    auto one = [](int) { return 1.0; };
    return {
        {"all_reduce", [=](int n) { return 2 * part(n); },
         [](Communicator& group, float*, float* in, std::size_t count, cudaStream_t stream) {
             group.all_reduce(in, count, ReduceOp::sum, stream);
         }},
        {"reduce_scatter", part,
         [](Communicator& group, float* out, float* in, std::size_t count, cudaStream_t stream) {
             group.reduce_scatter(out, in, count / static_cast<std::size_t>(group.size()), stream);
         }},
        {"all_gather", part,
         [](Communicator& group, float* out, float* in, std::size_t count, cudaStream_t stream) {
             group.all_gather(out, in, count / static_cast<std::size_t>(group.size()), stream);
         }},
        {"all_to_all", part,
         [](Communicator& group, float* out, float* in, std::size_t count, cudaStream_t stream) {
             group.all_to_all(out, in, count / static_cast<std::size_t>(group.size()), stream);
         }},
        {"broadcast", one,
         [](Communicator& group, float*, float* in, std::size_t count, cudaStream_t stream) {
             group.broadcast(in, count, 0, stream);
         }},
        {"reduce", one,
         [](Communicator& group, float*, float* in, std::size_t count, cudaStream_t stream) {
             group.reduce(in, count, 0, stream);
         }},
        {"send_receive", one,   // around a ring
         [](Communicator& group, float* out, float* in, std::size_t count, cudaStream_t stream) {
             const int n = group.size();
             const Communicator::Group together(group);
             group.send(in, count, (group.rank() + 1) % n, stream);
             group.receive(out, count, (group.rank() + n - 1) % n, stream);
         }},
    };
}

// Returns true if no group of these axes reaches over hosts.
bool inside_host(const MeshShape& mesh, AxisSet axes, const std::vector<std::string>& hosts) {
    for (int rank = 0; rank < mesh.size(); rank++) {
        for (const int peer : group_members(mesh, coordinates_of(mesh, rank), axes)) {
            if (hosts.at(static_cast<std::size_t>(peer)) != hosts.at(static_cast<std::size_t>(rank))) return false;
        }
    }
    return true;
}

struct MeasuredGroup {
    std::string name;
    Communicator* group;
    bool inside_host;
};
std::vector<MeasuredGroup> groups_of(World& world) {
    const std::vector<std::string> hosts = world.gather_text(own_host_identity());
    std::vector<MeasuredGroup> groups = {
        {"all", world.all(), inside_host(world.mesh(), {Axis::pp, Axis::dp, Axis::cp, Axis::tp}, hosts)}};
    for (const AxisSet axes : {AxisSet{Axis::pp}, AxisSet{Axis::dp}, AxisSet{Axis::cp}, AxisSet{Axis::tp}, zero_axes,
                               replica_axes, AxisSet{Axis::ep}}) {
        Communicator* const group = world.group(axes);
        if (group == nullptr || group->size() == world.ranks()) continue;
        if (std::ranges::find(groups, group, &MeasuredGroup::group) != groups.end()) continue;
        groups.push_back({group->name(), group, inside_host(world.mesh(), axes, hosts)});
    }
    return groups;
}

}   // namespace

double seconds_of(World& world, const std::function<void()>& call, int repeats, cudaStream_t stream) {
    std::vector<double> seconds;
    for (int i = 0; i < repeats + 1; i++) {   // the first one brings the ranks together
        const double start = steady_seconds();
        call();
        world.will_wait();
        wait_for(stream);
        world.has_waited();
        if (i > 0) seconds.push_back(steady_seconds() - start);
    }
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
}

std::vector<std::size_t> counts_for(std::size_t ranks, std::size_t most_bytes) {
    std::vector<std::size_t> counts;
    for (std::size_t bytes = 8; bytes <= most_bytes; bytes *= 8) {
        const std::size_t count = std::max<std::size_t>(bytes / sizeof(float) / ranks, 1) * ranks;
        if (count * sizeof(float) > most_bytes) continue;
        if (counts.empty() || counts.back() != count) counts.push_back(count);
    }
    return counts;
}

void take_slowest(World& world, std::vector<CollectiveTime>& times) {
    std::string own;
    for (const CollectiveTime& time : times) own += formatted("%.9g\n", time.seconds);
    for (const std::string& of_rank : world.gather_text(own)) {
        std::istringstream lines(of_rank);
        for (CollectiveTime& time : times) {
            double seconds = 0;
            lines >> seconds;
            time.seconds = std::max(time.seconds, seconds);
        }
    }
}

std::vector<CollectiveTime> measure_collectives(World& world, std::size_t most_bytes, int repeats, Arena& arena,
                                                cudaStream_t stream) {
    const auto out = arena.allocate<float>("collectives/out", most_bytes / sizeof(float));
    const auto in = arena.allocate<float>("collectives/in", most_bytes / sizeof(float));
    out.zero(stream), in.zero(stream);
    std::vector<CollectiveTime> times;
    for (const MeasuredGroup& of : groups_of(world)) {
        const int ranks = of.group->size();
        for (const Collective& collective : collectives()) {
            for (const std::size_t count : counts_for(static_cast<std::size_t>(ranks), most_bytes)) {
                const double seconds = seconds_of(
                    world, [&] { collective.run(*of.group, out.data(), in.data(), count, stream); }, repeats, stream);
                times.push_back({of.name, collective.name, ranks, of.inside_host,
                                 static_cast<double>(count * sizeof(float)), seconds, collective.bus_factor(ranks)});
            }
        }
    }
    take_slowest(world, times);
    return times;
}

LinkFit fit_link(const std::vector<CollectiveTime>& times) {
    // least squares of (latency + x / bandwidth) / t - 1
    double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
    for (const CollectiveTime& time : times) {
        const double u = 1 / time.seconds, v = time.bus_factor * time.bytes / time.seconds;
        aa += u * u, ab += u * v, bb += v * v, a += u, b += v;
    }
    const double determinant = aa * bb - ab * ab;
    double latency = determinant > 0 ? (a * bb - b * ab) / determinant : 0;
    if (latency < 0) latency = 0;
    const double slope = latency > 0 ? (aa * b - ab * a) / determinant : b / bb;
    return {latency, slope > 0 ? 1 / slope : 0};
}

namespace {

// Of one group and operation each.
std::vector<std::vector<CollectiveTime>> sorted_out(const std::vector<CollectiveTime>& times) {
    std::vector<std::vector<CollectiveTime>> parts;
    for (const CollectiveTime& time : times) {
        const bool same =
            !parts.empty() && parts.back()[0].group == time.group && parts.back()[0].operation == time.operation;
        if (!same) parts.emplace_back();
        parts.back().push_back(time);
    }
    return parts;
}

}   // namespace

std::string collectives_table(const std::vector<CollectiveTime>& times) {
    std::string table;
    for (const auto& part : sorted_out(times)) {
        const LinkFit fit = fit_link(part);
        table +=
            formatted("%s over %s, %d ranks: latency %.1f us, %.3f GB/s\n", part[0].operation.c_str(),
                      part[0].group.c_str(), part[0].ranks, 1e6 * fit.latency_seconds, 1e-9 * fit.bytes_per_second);
        table += formatted("  %12s %12s %12s %12s\n", "bytes", "time, us", "algbw, GB/s", "busbw, GB/s");
        for (const CollectiveTime& time : part) {
            table += formatted("  %12.0f %12.1f %12.3f %12.3f\n", time.bytes, 1e6 * time.seconds,
                               1e-9 * time.algorithm_bandwidth(), 1e-9 * time.bus_bandwidth());
        }
    }
    return table;
}

std::string algorithms_table(const std::vector<CollectiveTime>& times) {
    const std::vector<std::vector<CollectiveTime>> parts = sorted_out(times);
    std::string table = "microseconds of an all-reduce, by algorithm and bytes:\n" + formatted("  %-28s", "");
    std::string fastest = formatted("  %-28s", "the fastest");
    for (std::size_t size = 0; size < parts.front().size(); size++) {
        table += formatted(" %11.0f", parts.front()[size].bytes);
        const auto& best = *std::ranges::min_element(parts, {}, [&](const auto& part) { return part[size].seconds; });
        fastest += text(size == 0 ? " " : "; ", best.front().operation);
    }
    table += "\n";
    for (const auto& part : parts) {
        table += formatted("  %-28s", part.front().operation.c_str());
        for (const CollectiveTime& time : part) table += formatted(" %11.1f", 1e6 * time.seconds);
        table += "\n";
    }
    return table + fastest + "\n";
}

std::string collectives_json(const std::vector<CollectiveTime>& times) {
    Json rows = Json::array();
    for (const auto& part : sorted_out(times)) {
        const LinkFit fit = fit_link(part);
        Json sizes = Json::array();
        for (const CollectiveTime& time : part) {
            sizes.append(Json::object({{"bytes", time.bytes},
                                       {"seconds", time.seconds},
                                       {"algorithm_bytes_per_s", time.algorithm_bandwidth()},
                                       {"bus_bytes_per_s", time.bus_bandwidth()}}));
        }
        rows.append(Json::object({{"operation", part[0].operation},
                                  {"group", part[0].group},
                                  {"ranks", part[0].ranks},
                                  {"inside_host", part[0].inside_host},
                                  {"latency_s", fit.latency_seconds},
                                  {"bytes_per_s", fit.bytes_per_second},
                                  {"sizes", sizes}}));
    }
    return to_text(rows, 1);
}

std::string collectives_picture(const std::vector<CollectiveTime>& times) {
    std::vector<CurvePanel> panels;
    double most = 0;
    std::string group;
    for (const auto& part : sorted_out(times)) {
        if (part[0].group != group) {
            group = part[0].group;
            panels.push_back({text("bus bandwidth over ", group, ", ", part[0].ranks, " ranks, GB/s"), true, {}});
        }
        Curve curve{part[0].operation, {}};
        for (const CollectiveTime& time : part) {
            curve.points.push_back({time.bytes, 1e-9 * time.bus_bandwidth()});
            most = std::max(most, time.bytes);
        }
        panels.back().curves.push_back(std::move(curve));
    }
    std::vector<Tick> ticks;
    for (double bytes = 8; bytes <= most; bytes *= 8) {
        const int power = bytes < 1024 ? 0 : bytes < 1024 * 1024 ? 1 : bytes < 1024 * 1024 * 1024 ? 2 : 3;
        constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB"};
        ticks.push_back({bytes, number(bytes / std::pow(1024, power)) + kUnits[power]});
    }
    return curves_picture(panels, "bytes of the whole vector", ticks);
}

void set_links(Machine& machine, const std::vector<CollectiveTime>& times) {
    for (Link* link : {&machine.inter, &machine.intra}) {
        const bool inside = link == &machine.intra;
        const auto first = std::ranges::find(times, inside, &CollectiveTime::inside_host);
        if (first == times.end()) continue;
        for (const auto& part : sorted_out(times)) {
            if (part[0].group != first->group) continue;
            const LinkFit fit = fit_link(part);
            if (part[0].operation == "send_receive") {   // of the smallest message, where a fit has no latency
                link->seconds = fit.latency_seconds > 0 ? fit.latency_seconds : part.front().seconds;
            }
            if (part[0].operation == "all_reduce") {
                const double best = std::ranges::max_element(part, {}, &CollectiveTime::bus_bandwidth)->bus_bandwidth();
                link->bytes_per_second = fit.bytes_per_second > 0 ? fit.bytes_per_second : best;
                // over hosts the group is of all ranks, and leaves each host by the links of all of its ranks
                if (!inside) link->bytes_per_second /= std::min(first->ranks, machine.devices_per_node);
            }
        }
    }
}
