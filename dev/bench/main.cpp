// bench: times every kernel, the matmuls, attention and the whole step on the device at hand. `make bench` runs it.
// `--filter collectives`, started as several ranks (scripts/launch.sh, mpirun), times those.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "dev/bench/bench.h"
#include "dev/bench/collectives.h"

namespace {

int bench_collectives(const BenchOptions& options, const WorldOptions& layout) {
    World world(layout);
    if (world.ranks() == 1) {
        throw Error(ErrorKind::usage, "collectives of one process",
                    "Start several: make bench BENCH=collectives RANKS=4, or scripts/launch.sh, or mpirun.");
    }
    world.guarded([&] {
        cudaStream_t stream = nullptr;
        cudaDeviceProp device{};
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
        {
            Arena arena;
            const bool large = options.long_run || std::strncmp(device.name, "CPU", 3) != 0;
            const std::size_t most = std::size_t{1} << (large ? 30 : 24);
            const auto times = measure_collectives(world, most, 7, arena, stream);
            if (world.is_first()) std::fputs(collectives_table(times).c_str(), stdout);
            if (world.is_first() && !options.json.empty()) write_json(options.json, collectives_json(times));
        }
        CUDA_CHECK(cudaStreamDestroy(stream));
    });
    return 0;
}

}   // namespace

int main(int argc, char** argv) {
    BenchOptions options;
    WorldOptions layout;
    CLI::App app("Times every operation of training, beside the machine's own copy and matmul speed.");
    app.add_option("--filter", options.filter, "only operations whose name, or name and shape, match this pattern");
    app.add_flag("--long", options.long_run, "larger shapes, more samples");
    app.add_flag("--list", options.list, "names and shapes, without measuring");
    app.add_option("--json", options.json, "write the results to this file");
    for (auto [name, axis] :
         {std::pair("--pp", &layout.pp), std::pair("--cp", &layout.cp), std::pair("--tp", &layout.tp)}) {
        app.add_option(name, *axis, "of collectives: ranks of this axis; --filter collectives, several processes");
    }
    CLI11_PARSE(app, argc, argv);
    try {
        if (options.filter == "collectives") return bench_collectives(options, layout);
        cudaStream_t stream = nullptr;
        CUDA_CHECK(cudaSetDevice(0));
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        Bench bench(options, stream);
        int code = 0;
        for (const NamedBenchmark& benchmark : all_benchmarks()) {
            const std::size_t before = bench.results().size();
            try {
                benchmark.run(bench);
            } catch (const Error& error) {   // the others are measured all the same
                std::fprintf(stderr, "bench: %s: error: %s\n", benchmark.name.c_str(), error.what());
                code = error.exit_code();
            }
            if (!options.json.empty() && bench.results().size() > before) write_json(options.json, bench);
            if (cudaDeviceSynchronize() != cudaSuccess) {
                std::fprintf(stderr, "bench: %s has left the device with a fault: nothing more is measured\n",
                             benchmark.name.c_str());
                return static_cast<int>(ErrorKind::bug);
            }
        }
        if (!options.list && code == 0 && bench.results().empty()) {
            throw Error(ErrorKind::usage, "--filter '" + options.filter + "' matches no benchmark",
                        "--list prints their names and shapes.");
        }
        CUDA_CHECK(cudaStreamDestroy(stream));
        return code;
    } catch (const Error& error) {
        std::fprintf(stderr, "bench: error: %s\n", error.what());
        return error.exit_code();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench: error: %s\n", error.what());
        return static_cast<int>(ErrorKind::bug);
    }
}
