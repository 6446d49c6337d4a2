#include "llmc/plan/machine/measure_machine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/model/attention/attention_choice.h"
#include "llmc/model/precision.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/metrics/peak.h"

namespace {

constexpr std::size_t kMoreThanCaches = std::size_t{128} << 20;   // bytes of matrices, read one after another

double mean_over_ranks(World& world, double own) {
    double sum = 0;
    for (const std::string& of_rank : world.gather_text(to_bytes(own))) sum += value_of<double>(of_rank);
    return sum / world.ranks();
}

// Measures a rank's device while it does nothing else, loaded as in a step: random numbers, algorithms as a run takes
// them, calls one after another.
class Measuring {
public:
    Measuring(const MeasuredLoad& load, cudaStream_t stream)
        : load_(load), stream_(stream), seconds_each_(stand_in() == nullptr ? 2 : 0.2) {}

    double gap() {   // time of the smallest operation, so the overhead of any
        const auto tiny = arena_.allocate<floatX>("machine/tiny", 64);
        return median_seconds([&] { CUDA_CHECK(cudaMemsetAsync(tiny.data(), 0, 64, stream_)); }, 200);
    }
    // Returns bytes per second of a kernel that streams: it adds one vector to another.
    double copy_rate() {
        const std::size_t count = (std::size_t{64} << 20) / sizeof(floatX);
        const auto from = random<floatX>("from", count), to = random<floatX>("to", count);
        const double seconds =
            median_seconds([&] { accumulate(to.data(), from.data(), static_cast<std::int64_t>(count), stream_); });
        return 3 * static_cast<double>(from.bytes()) / seconds;
    }
    // Returns the rate of a linear layer's three products, forward and backward, with matrices that no cache holds: as
    // in a step, which comes back to a matrix after all others.
    MatmulRate matmul_rate(int rows, int size) {
        Matmul matmul(arena_, load_.matmul);
        const std::size_t each = std::size_t(size) * std::size_t(size);
        const std::size_t count = std::max<std::size_t>(kMoreThanCaches / (each * sizeof(floatX)), 1);
        const std::size_t activations = std::size_t(rows) * std::size_t(size);
        const auto in = random<floatX>("in", activations), dout = random<floatX>("dout", activations),
                   weights = random<floatX>("weights", count * each, 0.02f);
        const auto out = arena_.allocate<floatX>("machine/out", activations),
                   din = arena_.allocate<floatX>("machine/din", activations);
        const auto gradients = arena_.allocate<float>("machine/gradients", count * each);
        gradients.zero(stream_);
        const MatmulShape shape{rows, size, size};
        std::size_t next = 0;
        const double seconds = median_seconds([&] {
            const std::size_t first = next++ % count * each;
            const floatX* const weight = weights.data() + first;
            matmul.forward<floatX>(out.data(), in.data(), weight, nullptr, shape, stream_);
            matmul.input_gradient(din.data(), dout.data(), weight, shape, false, stream_);
            matmul.weight_gradient(gradients.data() + first, dout.data(), in.data(), shape, false, stream_);
        });
        const double flops = 2.0 * rows * size * size;
        return {flops, 3 * flops / seconds};
    }
    // Returns the FLOPs per second of attention at the run's shape, forward and backward together, counting the pairs
    // that a causal mask leaves: the fastest kind, as `--attention auto` takes it, or the one that is asked for.
    double attention_rate() {
        const AttentionShape& s = load_.attention;
        const AttentionChoice<floatX> choice(AttentionKind::auto_, s, arena_);
        std::vector<AttentionKind> kinds{load_.kind};
        if (load_.kind == AttentionKind::auto_) {
            kinds = choice.open() ? choice.candidates(s) : std::vector<AttentionKind>{choice.chosen()};
        }
        double least = std::numeric_limits<double>::infinity();
        for (const AttentionKind kind : kinds) least = std::min(least, attention_seconds(kind));
        const double pairs = 0.5 * s.B * s.NH * s.Tq * s.Tk;
        return 14.0 * pairs * s.HS / least;   // two products of forward, five of backward
    }
    // Returns the share of a device's speed that an all-reduce over all ranks takes from matmuls beside it; on average
    // over the ranks. Collective.
    double collective_share(World& world) {
        Matmul matmul(arena_, load_.matmul);
        constexpr int rows = 256, size = 1024, products = 16;
        const auto in = random<floatX>("in", std::size_t{rows} * size),
                   weight = random<floatX>("weight", std::size_t{size} * size, 0.02f);
        const auto out = arena_.allocate<floatX>("machine/out", in.size());
        const auto message = random<float>("message", std::size_t{1} << 21);
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

private:
    // Returns the seconds of one of `work`'s calls: the median of batches of calls, each long enough that the wait at
    // its end does not count, for so long that the device's clock is that of a step.
    double median_seconds(const std::function<void()>& work, int least_calls = 1) {
        constexpr double batch_seconds = 0.02;
        auto timed = [&](int calls) {
            wait_for(stream_);
            const double start = steady_seconds();
            for (int i = 0; i < calls; i++) work();
            wait_for(stream_);
            return (steady_seconds() - start) / calls;
        };
        timed(1);   // warms up, and chooses algorithms
        const int calls = std::max(least_calls, static_cast<int>(std::clamp(batch_seconds / timed(1), 1.0, 1000.0)));
        std::vector<double> times;
        const double start = steady_seconds();
        while (times.size() < 5 || steady_seconds() - start < seconds_each_) times.push_back(timed(calls));
        std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
        return times[times.size() / 2];
    }

    // Returns the seconds of forward and backward of a kind, which can serve.
    double attention_seconds(AttentionKind kind) {
        const AttentionShape& s = load_.attention;
        const int kv = s.kv_heads();
        Arena arena;
        const AttentionChoice<floatX> attention(kind, s, arena);
        const std::size_t rows = std::size_t(s.B) * std::size_t(s.Tq), width = std::size_t(s.NH) * std::size_t(s.HS),
                          packed = rows * std::size_t(s.NH + 2 * kv) * std::size_t(s.HS);
        const auto qkv = random<floatX>("qkv", packed), dout = random<floatX>("dattended", rows * width);
        const auto dqkv = arena.allocate<floatX>("machine/dqkv", packed),
                   out = arena.allocate<floatX>("machine/attended", rows * width);
        const auto lse = arena.allocate<float>("machine/lse", rows * std::size_t(s.NH)),
                   delta = arena.allocate<float>("machine/delta", rows * std::size_t(s.NH));
        auto part = [&](floatX* of, int i) { return packed_heads(of, i, s.Tq, s.NH, s.HS, kv); };
        auto whole = [&](floatX* of) { return contiguous_heads(of, s.Tq, s.NH, s.HS); };
        floatX *const q = qkv.data(), *const dq = dqkv.data();
        const AttentionForward<floatX> forward{whole(out.data()), lse.data(), part(q, 0), part(q, 1), part(q, 2), s};
        const AttentionBackward<floatX> backward{part(dq, 0),
                                                 part(dq, 1),
                                                 part(dq, 2),
                                                 delta.data(),
                                                 whole(dout.data()),
                                                 whole(out.data()),
                                                 lse.data(),
                                                 part(q, 0),
                                                 part(q, 1),
                                                 part(q, 2),
                                                 s};
        attention.prepare(forward, backward);
        return median_seconds([&] {
            attention.forward(forward, stream_);
            attention.backward(backward, stream_);
        });
    }

    template <class T>
    DeviceBuffer<T> random(const char* name, std::size_t count, float deviation = 1) {
        auto memory = arena_.allocate<T>(text("machine/", name), count);
        fill_normal(memory.data(), static_cast<std::int64_t>(count), deviation, ++key_, GlobalSpan{}, stream_);
        return memory;
    }

    MeasuredLoad load_;
    cudaStream_t stream_;
    double seconds_each_;   // time of repeats per measurement
    Arena arena_;
    std::uint64_t key_ = 0;
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

MeasuredLoad measured_load(const ModelConfig& c, int B, int T) {
    return {.rows = B * T,
            .attention = self_attention_shape(B, T, static_cast<int>(c.heads), static_cast<int>(c.head_size()), true,
                                              static_cast<int>(c.heads / c.kv_heads()))};
}

Machine measure_machine(World& world, const MeasuredLoad& load, const LinkSpeeds* links, int comm_sms,
                        cudaStream_t stream) {
    Measuring measuring(load, stream);
    const bool is_gpu = stand_in() == nullptr;
    std::vector<double> own{measuring.gap(), measuring.copy_rate(), measuring.attention_rate()};
    std::vector<double> sizes;
    for (int size = 64; size <= (is_gpu ? 8192 : 1024); size *= 2) {
        const MatmulRate rate = measuring.matmul_rate(is_gpu ? load.rows : std::min(load.rows, 256), size);
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
    const AttentionShape& of = load.attention;
    machine.source = text("measured by check --write-machine with ", world.ranks(), " rank(s), matmuls of ", load.rows,
                          " rows, attention of ", of.B, " x ", of.Tq, " tokens, ", of.NH, " heads of ", of.HS);
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
