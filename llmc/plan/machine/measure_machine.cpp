#include "llmc/plan/machine/measure_machine.h"

#include <algorithm>
#include <set>

#include "llmc/base/log.h"
#include "llmc/model/attention_choice.h"
#include "llmc/model/precision.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/metrics/peak.h"

namespace {

constexpr double kSecondsEach = 0.2;   // seconds of repeats per measurement; the median counts

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

class Measuring {
public:
    explicit Measuring(cudaStream_t stream) : stream_(stream) {}

    double gap() {   // time of the smallest operation, so the overhead of any
        const auto tiny = buffer("tiny", 64);
        constexpr int many = 200;
        const double all = median_seconds(
            [&] {
                for (int i = 0; i < many; i++) CUDA_CHECK(cudaMemsetAsync(tiny.data(), 0, 64, stream_));
            },
            stream_);
        return all / many;
    }
    double copy_rate() {
        const std::size_t count = (std::size_t{64} << 20) / sizeof(floatX);
        const auto from = buffer("from", count), to = buffer("to", count);
        const double seconds = median_seconds(
            [&] {
                CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, stream_));
            },
            stream_);
        return 2 * static_cast<double>(from.bytes()) / seconds;
    }
    MatmulRate matmul_rate(int rows, int size) {
        Matmul matmul(arena_);
        const auto in = buffer("in", std::size_t(rows) * std::size_t(size)), out = buffer("out", in.size()),
                   weight = buffer("weight", std::size_t(size) * std::size_t(size));
        const double flops = 2.0 * rows * size * size;
        const double seconds = median_seconds(
            [&] {
                matmul.forward<floatX>(out.data(), in.data(), weight.data(), nullptr, {rows, size, size}, stream_);
            },
            stream_);
        return {flops, flops / seconds};
    }
    double attention_rate() {
        constexpr int T = 512, NH = 8, HS = 64, C = NH * HS;
        const AttentionShape shape = self_attention_shape(1, T, NH, HS);
        const AttentionChoice<floatX> attention(AttentionKind::auto_, shape, arena_, {.backward = false});
        const auto qkv = buffer("qkv", std::size_t{3} * T * C), out = buffer("attended", std::size_t{T} * C);
        const auto lse = arena_.allocate<float>("machine/lse", std::size_t{NH} * T);
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
    DeviceBuffer<floatX> buffer(const char* name, std::size_t count) {
        auto memory = arena_.allocate<floatX>(text("machine/", name), count);
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
}

}   // namespace

Machine measure_machine(World& world, const LinkSpeeds* links, cudaStream_t stream) {
    Measuring measuring(stream);
    const bool is_gpu = !LibraryAttention::surely_faster();
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
    machine.devices_per_node = static_cast<int>(std::ranges::count(hosts, hosts.front()));
    if (links != nullptr) add_links(machine, *links, hosts);
    for (Link* link : {&machine.intra, &machine.inter}) {   // a missing kind of link counts as fast as copies of memory
        if (link->bytes_per_second == 0) *link = {machine.copy_bytes_per_second / 2, machine.kernel_seconds};
    }
    machine.peak_flops = is_gpu ? data_sheet_flops(machine.name, dtype_of<floatX>, false).value_or(0) : 0;
    return machine;
}
