#include "llmc/plan/machine/measure_machine.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/model/attention/attention_choice.h"
#include "llmc/model/precision.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/metrics/peak.h"

namespace {

constexpr double kSecondsEach = 0.2;   // seconds of repeats per measurement; the median counts
constexpr std::size_t kMoreThanCaches = std::size_t{128} << 20;   // bytes of matrices, read one after another
constexpr int kMatricesAtOnce = 4;                                // between two waits for the device

double median_seconds(const std::function<void()>& work, cudaStream_t stream) {
    auto timed = [&] {
        wait_for(stream);
        const double start = steady_seconds();
        work();
        wait_for(stream);
        return steady_seconds() - start;
    };
    timed();   // warms up
    std::vector<double> times;
    for (double sum = 0; times.size() < 5 || (sum < kSecondsEach && times.size() < 200);) {
        times.push_back(timed());
        sum += times.back();
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
}

double mean_over_ranks(World& world, double own) {
    double sum = 0;
    for (const std::string& of_rank : world.gather_text(to_bytes(own))) sum += value_of<double>(of_rank);
    return sum / world.ranks();
}

class Measuring {
public:
    explicit Measuring(cudaStream_t stream) : stream_(stream) {}

    double gap() {   // time of the smallest operation, so the overhead of any
        const auto tiny = buffer<floatX>("tiny", 64);
        constexpr int many = 200;
        const double all = median_seconds(
            [&] {
                for (int i = 0; i < many; i++) CUDA_CHECK(cudaMemsetAsync(tiny.data(), 0, 64, stream_));
            },
            stream_);
        return all / many;
    }
    // Returns bytes per second of a kernel that streams: it adds one vector to another.
    double copy_rate() {
        const std::size_t count = (std::size_t{64} << 20) / sizeof(floatX);
        const auto from = buffer<floatX>("from", count), to = buffer<floatX>("to", count);
        const double seconds = median_seconds(
            [&] { accumulate(to.data(), from.data(), static_cast<std::int64_t>(count), stream_); }, stream_);
        return 3 * static_cast<double>(from.bytes()) / seconds;
    }
    // Returns the rate of a linear layer's three products, forward and backward, with matrices that no cache holds: as
    // in a step, which comes back to a matrix after all others.
    MatmulRate matmul_rate(int rows, int size) {
        Matmul matmul(arena_);
        const std::size_t each = std::size_t(size) * std::size_t(size);
        const std::size_t count = std::max<std::size_t>(kMoreThanCaches / (each * sizeof(floatX)), 1);
        const auto in = buffer<floatX>("in", std::size_t(rows) * std::size_t(size)),
                   out = buffer<floatX>("out", in.size()), weights = buffer<floatX>("weights", count * each);
        const auto gradients = buffer<float>("gradients", count * each);
        const MatmulShape shape{rows, size, size};
        std::size_t next = 0;
        const double seconds = median_seconds(
            [&] {
                for (int i = 0; i < kMatricesAtOnce; i++, next = (next + 1) % count) {
                    const floatX* const weight = weights.data() + next * each;
                    matmul.forward<floatX>(out.data(), in.data(), weight, nullptr, shape, stream_);
                    matmul.input_gradient(in.data(), out.data(), weight, shape, false, stream_);
                    matmul.weight_gradient(gradients.data() + next * each, out.data(), in.data(), shape, false,
                                           stream_);
                }
            },
            stream_);
        const double flops = 2.0 * rows * size * size;
        return {flops, 3 * kMatricesAtOnce * flops / seconds};
    }
    // Returns the share of a device's speed that an all-reduce over all ranks takes from matmuls beside it; on average
    // over the ranks. Collective.
    double collective_share(World& world) {
        Matmul matmul(arena_);
        constexpr int rows = 256, size = 1024, products = 16;
        const auto in = buffer<floatX>("in", std::size_t{rows} * size), out = buffer<floatX>("out", in.size()),
                   weight = buffer<floatX>("weight", std::size_t{size} * size);
        const auto message = buffer<float>("message", std::size_t{1} << 21);
        const OwnedStream communication;
        auto multiply = [&] {
            for (int i = 0; i < products; i++) {
                matmul.forward<floatX>(out.data(), in.data(), weight.data(), nullptr, {rows, size, size}, stream_);
            }
        };
        auto reduce = [&](int times) {
            for (int i = 0; i < times; i++) {
                world.all()->all_reduce(message.data(), message.size(), ReduceOp::sum, communication.get());
            }
        };
        auto seconds_of = [&](int reduces, bool multiplies) {   // from a start together until the last matmul
            reduce(1);
            world.will_wait(), wait_for(communication.get()), world.has_waited();
            const double start = steady_seconds();
            reduce(reduces);
            if (multiplies) multiply(), wait_for(stream_);
            const double multiplied = steady_seconds();
            world.will_wait(), wait_for(communication.get()), world.has_waited();
            return (multiplies ? multiplied : steady_seconds()) - start;
        };
        auto median_of = [&](int reduces, bool multiplies) {
            std::vector<double> times(5);
            for (double& time : times) time = seconds_of(reduces, multiplies);
            std::ranges::sort(times);
            return mean_over_ranks(world, times[times.size() / 2]);
        };
        seconds_of(0, true);   // warms up
        const double alone = median_of(0, true), reduced = median_of(1, false);
        const int enough =
            1 + static_cast<int>(4 * alone / std::max(reduced, 1e-6));   // they outlast the matmuls, which they slow
        return std::max(0.0, 1 - alone / median_of(enough, true));
    }
    double attention_rate() {
        constexpr int T = 512, NH = 8, HS = 64, C = NH * HS;
        const AttentionShape shape = self_attention_shape(1, T, NH, HS);
        const AttentionChoice<floatX> attention(AttentionKind::auto_, shape, arena_, {.backward = false});
        const auto qkv = buffer<floatX>("qkv", std::size_t{3} * T * C),
                   out = buffer<floatX>("attended", std::size_t{T} * C);
        const auto lse = buffer<float>("lse", std::size_t{NH} * T);
        auto view = [&](const floatX* data) {
            return HeadsView<const floatX>{data, std::int64_t{3} * T * C, 3 * C, HS};
        };
        const floatX* const q = qkv.data();
        const AttentionForward<floatX> arguments{
            {out.data(), std::int64_t{T} * C, C, HS}, lse.data(), view(q), view(q + C), view(q + 2 * C), shape};
        const double seconds = median_seconds([&] { attention.forward(arguments, stream_); }, stream_);
        return 2.0 * NH * HS * T * T / seconds;   // two products over half of the pairs
    }

private:
    template <class T>
    DeviceBuffer<T> buffer(const char* name, std::size_t count) {
        auto memory = arena_.allocate<T>(text("machine/", name), count);
        memory.zero(stream_);
        return memory;
    }

    cudaStream_t stream_;
    Arena arena_;
};

void add_links(Machine& machine, const LinkSpeeds& links, const std::vector<std::string>& hosts) {
    for (const LinkSpeed& pair : links.pairs) {   // the slowest first
        auto host = [&](int rank) { return hosts.at(static_cast<std::size_t>(rank)); };
        Link& link = host(pair.rank) == host(pair.peer) ? machine.intra : machine.inter;
        if (link.bytes_per_second == 0) link = {pair.bytes_per_second, pair.seconds};
    }
    // a pair talks one way at a time; in a collective all ranks send and receive at once
    if (std::ranges::count(hosts, hosts.front()) < std::ssize(hosts)) return;
    for (const LinkSpeed& group : links.groups) {
        machine.intra.bytes_per_second = std::min(machine.intra.bytes_per_second, group.bytes_per_second);
    }
}

}   // namespace

Machine measure_machine(World& world, const LinkSpeeds* links, int comm_sms, cudaStream_t stream) {
    Measuring measuring(stream);
    const bool is_gpu = stand_in() == nullptr;
    std::vector<double> own{measuring.gap(), measuring.copy_rate(), measuring.attention_rate()};
    std::vector<double> sizes;
    for (int size = 64; size <= (is_gpu ? 8192 : 1024); size *= 2) {
        const MatmulRate rate = measuring.matmul_rate(is_gpu ? 8192 : 256, size);
        sizes.push_back(rate.flops);
        own.push_back(rate.per_second);
    }
    std::vector<double> slowest = own;
    for (const std::string& of_rank : world.gather_text(to_bytes(std::span<const double>(own)))) {
        const std::vector<double> found = values_of<double>(of_rank);
        for (std::size_t i = 0; i < own.size(); i++)
            slowest[i] = i == 0 ? std::max(slowest[i], found.at(i)) : std::min(slowest[i], found.at(i));
    }
    const std::vector<std::string> hosts = world.gather_text(own_host_identity());
    Machine machine;
    const cudaDeviceProp device = device_properties();
    machine.name = device.name;
    machine.source = text("measured by check --write-machine with ", world.ranks(), " rank(s)");
    machine.kernel_seconds = slowest[0], machine.copy_bytes_per_second = slowest[1];
    machine.attention_per_second = slowest[2];
    for (std::size_t i = 0; i < sizes.size(); i++) machine.matmul.push_back({sizes[i], slowest[i + 3]});
    machine.memory_bytes = static_cast<double>(device.totalGlobalMem);
    machine.multiprocessors = is_gpu ? device.multiProcessorCount : 0;
    if (!is_gpu && world.ranks() > 1) {   // a device of as many multiprocessors as give a collective its share
        const double share = measuring.collective_share(world);
        const int taken = comm_sms > 0 ? comm_sms : kCollectiveMultiprocessors;
        if (share > 0.01) machine.multiprocessors = static_cast<int>(std::lround(taken / share));
    }
    machine.devices_per_node = static_cast<int>(std::ranges::count(hosts, hosts.front()));
    if (links != nullptr) add_links(machine, *links, hosts);
    for (Link* link : {&machine.intra, &machine.inter}) {   // a missing kind of link counts as fast as copies of memory
        if (link->bytes_per_second == 0) *link = {machine.copy_bytes_per_second / 2, machine.kernel_seconds};
    }
    machine.peak_flops = is_gpu ? data_sheet_flops(machine.name, dtype_of<floatX>, false).value_or(0) : 0;
    return machine;
}
