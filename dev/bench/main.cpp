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
        for (const NamedBenchmark& benchmark : all_benchmarks()) benchmark.run(bench);
        if (!options.list && bench.results().empty()) {
            throw Error(ErrorKind::usage, "--filter '" + options.filter + "' matches no benchmark",
                        "--list prints their names and shapes.");
        }
        if (!options.json.empty()) write_json(options.json, bench);
        CUDA_CHECK(cudaStreamDestroy(stream));
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "bench: error: %s\n", error.what());
        return error.exit_code();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench: error: %s\n", error.what());
        return static_cast<int>(ErrorKind::bug);
    }
}
