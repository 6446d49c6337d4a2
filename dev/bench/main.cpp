// bench: times every kernel, the matmuls, attention and the whole step on the device at hand. `make bench` runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    BenchOptions options;
    CLI::App app("Times every operation of training, beside the machine's own copy and matmul speed.");
    app.add_option("--filter", options.filter, "only operations whose name, or name and shape, match this pattern");
    app.add_flag("--long", options.long_run, "larger shapes, more samples");
    app.add_flag("--list", options.list, "names and shapes, without measuring");
    app.add_option("--json", options.json, "write the results to this file");
    CLI11_PARSE(app, argc, argv);
    try {
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
