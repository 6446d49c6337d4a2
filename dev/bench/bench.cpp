#include "dev/bench/bench.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>

#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/operation_timer.h"
#include "llmc/model/precision.h"

namespace {

std::vector<NamedBenchmark>& registry() {
    static std::vector<NamedBenchmark> benchmarks;
    return benchmarks;
}

double percentile(const std::vector<double>& sorted, double share) {
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

// "12.3", or "-" where there is nothing to say.
std::string number(double value, const char* format) { return value > 0 ? formatted(format, value) : "-"; }

const char* const row_format = "%-34s %-30s %10s %10s %9s %7s %10s %8s %11s\n";

}   // namespace

Benchmark::Benchmark(const char* name, Run run) { registry().push_back({name, run}); }

std::vector<NamedBenchmark> all_benchmarks() {
    std::vector<NamedBenchmark> sorted = registry();
    std::ranges::sort(sorted, {}, &NamedBenchmark::name);
    return sorted;
}

Sample sample_calls(const std::function<void(int count)>& calls, cudaStream_t stream, double seconds_to_spend,
                    bool on_gpu) {
    const TimedEvent begin, end;
    auto seconds_per_call = [&](int count) {
        begin.record(stream);
        calls(count);
        end.record(stream);
        CUDA_CHECK(cudaEventSynchronize(end.get()));
        return end.seconds_since(begin) / count;
    };
    seconds_per_call(1);   // warms up: library plans, caches, clocks
    const double first = std::max(seconds_per_call(1), 1e-7);
    const double least_interval = on_gpu ? 5e-4 : 5e-5;   // an event costs microseconds on a GPU
    const int group = static_cast<int>(std::clamp(least_interval / first, 1.0, 100.0));
    const int samples = static_cast<int>(std::clamp(seconds_to_spend / (first * group), 3.0, 200.0));
    std::vector<double> seconds;
    for (int i = 0; i < samples; i++) seconds.push_back(seconds_per_call(group));
    std::ranges::sort(seconds);
    return {percentile(seconds, 0.5), percentile(seconds, 0.95), seconds.front(), samples};
}

Bench::Bench(const BenchOptions& options, cudaStream_t stream) : options_(options), stream_(stream) {
    CUDA_CHECK(cudaGetDeviceProperties(&device_, 0));
    on_gpu_ = std::strncmp(device_.name, "CPU", 3) != 0;
}

std::unique_ptr<Timing> Bench::begin(const Case& what) {
    const std::string full = what.name + " " + what.shape;
    if (fnmatch(options_.filter.c_str(), what.name.c_str(), 0) != 0 &&
        fnmatch(options_.filter.c_str(), full.c_str(), 0) != 0) {
        return nullptr;
    }
    if (options_.list) {
        std::printf("%s\n", full.c_str());
        return nullptr;
    }
    if (ceilings_.copy_bytes_per_s == 0) ceilings_ = measure_ceilings(stream_, on_gpu_, device_.l2CacheSize);
    return std::make_unique<Timing>(*this, what);
}

void Bench::print(const Result& result) {
    if (!printed_) {
        std::printf("%s, %s\ncopy %.1f GB/s, matmul %.1f GFLOP/s\n\n", device_.name, precision_name,
                    1e-9 * ceilings_.copy_bytes_per_s, 1e-9 * ceilings_.matmul_flops_per_s);
        std::printf(row_format, "operation", "shape", "median ms", "p95 ms", "GB/s", "% copy", "GFLOP/s", "% matmul",
                    "bytes/token");
        printed_ = true;
    }
    const double s = result.seconds.median;
    const Work& work = result.what.work;
    std::printf(row_format, result.what.name.c_str(), result.what.shape.c_str(), formatted("%.4f", 1e3 * s).c_str(),
                formatted("%.4f", 1e3 * result.seconds.p95).c_str(), number(1e-9 * work.bytes / s, "%.1f").c_str(),
                number(100 * work.bytes / s / ceilings_.copy_bytes_per_s, "%.0f").c_str(),
                number(1e-9 * work.flops / s, "%.1f").c_str(),
                number(100 * work.flops / s / ceilings_.matmul_flops_per_s, "%.1f").c_str(),
                number(work.tokens > 0 ? work.bytes / work.tokens : 0, "%.0f").c_str());
    double sum = 0;
    for (const Result::Share& share : result.breakdown) sum += share.seconds;
    for (const Result::Share& share : result.breakdown) {
        std::printf("    %-46s %6d calls %12.4f ms %6.1f %% %9s GB/s\n", share.name.c_str(), share.calls,
                    1e3 * share.seconds, 100 * share.seconds / sum,
                    number(1e-9 * share.bytes / share.seconds, "%.1f").c_str());
    }
    if (!result.breakdown.empty()) {
        std::printf("    %-46s %6s       %12.4f ms, of a step with an event after every operation\n", "sum", "",
                    1e3 * sum);
        std::printf("    %.1f tokens/s\n", work.tokens / s);
    }
    std::fflush(stdout);
}

Timing::Timing(Bench& bench, const Case& what) : bench_(bench), what_(what) {
    const double cache = 2.0 * bench.device().l2CacheSize;
    sets_ = static_cast<int>(std::clamp(cache / std::max(what.work.bytes, 1.0) + 1.0, 1.0, 64.0));
}

Result Timing::timed(const std::function<void(int set)>& call) {
    auto calls = [&](int count) {
        for (int i = 0; i < count; i++) {
            call(next_set_);
            next_set_ = (next_set_ + 1) % sets_;
        }
    };
    const double seconds_to_spend = bench_.long_run() ? 1.0 : 0.15;
    return {what_, sample_calls(calls, bench_.stream(), seconds_to_spend, bench_.on_gpu()), {}};
}

void Timing::measure(const std::function<void(int set)>& call) {
    Result result = timed(call);
    bench_.print(result);
    bench_.results_.push_back(std::move(result));
}

void Timing::measure_with_breakdown(const std::function<void(int set)>& call) {
    Result result = timed(call);
    OperationTimer timer(bench_.stream());
    call(next_set_);
    for (const OperationTimer::Total& total : timer.totals()) {
        result.breakdown.push_back({total.name, total.seconds, total.calls, total.bytes});
    }
    bench_.print(result);
    bench_.results_.push_back(std::move(result));
}

void write_json(const std::string& path, const Bench& bench) {
    Json cases = Json::array();
    for (const Result& r : bench.results()) {
        Json one = Json::object({{"name", r.what.name},
                                 {"shape", r.what.shape},
                                 {"bytes", r.what.work.bytes},
                                 {"flops", r.what.work.flops},
                                 {"tokens", r.what.work.tokens},
                                 {"median_s", r.seconds.median},
                                 {"p95_s", r.seconds.p95},
                                 {"best_s", r.seconds.best},
                                 {"samples", r.seconds.samples}});
        Json shares = Json::array();
        for (const Result::Share& share : r.breakdown) {
            shares.append(Json::object({{"name", share.name},
                                        {"seconds", share.seconds},
                                        {"calls", share.calls},
                                        {"moved_bytes", share.bytes}}));
        }
        if (!r.breakdown.empty()) one.add("breakdown", std::move(shares));
        cases.append(std::move(one));
    }
    const Json all = Json::object({{"device", bench.device().name},
                                   {"precision", precision_name},
                                   {"unix_time", std::time(nullptr)},
                                   {"copy_bytes_per_s", bench.ceilings().copy_bytes_per_s},
                                   {"matmul_flops_per_s", bench.ceilings().matmul_flops_per_s},
                                   {"cases", cases}});
    write_json(path, to_text(all, 1));
}

void write_json(const std::string& path, const std::string& text) {
    std::ofstream out(path);
    out << text << "\n";
    out.close();
    if (!out) throw Error(ErrorKind::io, "cannot write " + path, "Give --json a path in a folder that exists.");
}
