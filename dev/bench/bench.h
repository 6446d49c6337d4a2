// The one harness of all benchmarks: times an operation on the device and says how near it comes to what the machine
// can do.
//
// A benchmark is a file in this folder, found by name, that registers itself:
//
//     void run(Bench& bench) {
//         const Case c{"gelu forward", "R=8192 C=3072", {.bytes = 2.0 * n * sizeof(floatX), .tokens = 8192}};
//         if (auto timing = bench.begin(c)) {
//             Operand<floatX> out(*timing, n), in(*timing, n);
//             timing->measure([&](int set) { gelu_forward(out[set], in[set], n, bench.stream()); });
//         }
//     }
//     const Benchmark registered("gelu", run);
//
// How it measures: operands exist in several sets, together more than twice the device's cache, and each call takes the
// next set, so that no call finds its operands where the one before left them (in training they come from memory too).
// After a warm-up, calls are timed between two events on the stream: on a GPU as many per pair of events as make the
// events' own cost small. Reported are the median and the 95th percentile of such times.
//
// What it compares with: bytes and flops are counted by formula (every operand moved once; what a perfect kernel
// needs), and divided by the time, as a share of the machine's own copy and matmul speed measured in the same run. A
// copy reads and writes as many bytes; an operation that only reads may exceed it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"

// What one call needs, by formula.
struct Work {
    double bytes = 0;   // of device memory, read and written
    double flops = 0;
    double tokens = 0;   // that the call serves; 0: not a matter of tokens
};

// Which operation, at which shape.
struct Case {
    std::string name, shape;
    Work work;
};

struct BenchOptions {
    std::string filter = "*";   // shell pattern; "name" or "name shape" must match
    bool long_run = false;      // larger shapes and more samples
    bool list = false;          // say what there is, measure nothing
    std::string json;           // where to write the results; empty: nowhere
};

// Seconds per call.
struct Sample {
    double median = 0, p95 = 0, best = 0;
    int samples = 0;
};

struct Result {
    Case what;
    Sample seconds;
    struct Share {   // of a call, by operation
        std::string name;
        double seconds;
        int calls;
        double bytes;   // by formula (operation_timer.h)
    };
    std::vector<Share> breakdown;   // empty: none was made
};

// What the device can do at best, measured.
struct Ceilings {
    double copy_bytes_per_s = 0, matmul_flops_per_s = 0;
};

class Timing;

class Bench {
public:
    Bench(const BenchOptions& options, cudaStream_t stream);

    cudaStream_t stream() const { return stream_; }
    bool long_run() const { return options_.long_run; }
    bool on_gpu() const { return on_gpu_; }
    const cudaDeviceProp& device() const { return device_; }
    const Ceilings& ceilings() const { return ceilings_; }
    const std::vector<Result>& results() const { return results_; }

    // Null where the filter leaves this case out.
    std::unique_ptr<Timing> begin(const Case& what);

    // Picks by machine: the same benchmark uses shapes that keep a GPU busy, or that a CPU ends in time.
    template <class T>
    T choose(T on_gpu, T on_cpu) const {
        return on_gpu_ ? on_gpu : on_cpu;
    }

private:
    friend class Timing;
    void print(const Result& result);

    BenchOptions options_;
    cudaStream_t stream_;
    cudaDeviceProp device_{};
    bool on_gpu_;
    Ceilings ceilings_;
    std::vector<Result> results_;
    bool printed_ = false;
};

// One case while it is measured: owns its operands, and adds its result to the bench.
class Timing {
public:
    Timing(Bench& bench, const Case& what);
    Timing(const Timing&) = delete;

    Bench& bench() { return bench_; }
    Arena& arena() { return arena_; }
    int sets() const { return sets_; }

    // Times call(set), which asks for the work on the bench's stream. Once per Timing.
    void measure(const std::function<void(int set)>& call);
    // The same, and then once more with an event after every operation that it asks for: where the time goes.
    void measure_with_breakdown(const std::function<void(int set)>& call);

private:
    Result timed(const std::function<void(int set)>& call);

    Bench& bench_;
    Case what_;
    Arena arena_;
    int sets_;
    int next_set_ = 0;
};

// A benchmark of this program. Register one per file, at namespace scope.
struct Benchmark {
    using Run = void (*)(Bench&);
    Benchmark(const char* name, Run run);
};

// Registered ones, by name.
struct NamedBenchmark {
    std::string name;
    Benchmark::Run run;
};
std::vector<NamedBenchmark> all_benchmarks();

// Seconds per call of `call`, on the stream: what Timing does, for the ceilings, which no case is needed for.
Sample sample_calls(const std::function<void(int count)>& calls, cudaStream_t stream, double seconds_to_spend,
                    bool on_gpu);

// Best of copying and of multiplying (ceilings.cu).
Ceilings measure_ceilings(cudaStream_t stream, bool on_gpu, std::int64_t cache_bytes);

// The results with their machine, as JSON.
void write_json(const std::string& path, const Bench& bench);
void write_json(const std::string& path, const std::string& text);
