// bench: times every kernel, the matmuls, attention and the whole step on the device at hand. `make bench` runs it.
// `--filter collectives`, started as several ranks (scripts/launch.sh, mpirun), times those; `--filter asynchrony`
// trains with late updates.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "dev/bench/asynchrony.h"
#include "dev/bench/bench.h"
#include "dev/bench/collectives.h"
#include "llmc/io/file.h"
#include "llmc/io/standard_descriptors.h"
#include "llmc/plan/machine/measure_machine.h"

namespace {

struct CollectivesOptions {
    WorldOptions layout;
    std::size_t max_bytes = 0;            // of the largest vector; 0: by device
    bool algorithms = false;              // those of dev/bench/algorithms, too
    std::string picture, write_machine;   // files; empty: none
};

int bench_collectives(const BenchOptions& options, const CollectivesOptions& asked) {
    World world(asked.layout);
    if (world.ranks() == 1) {
        throw Error(ErrorKind::usage, "collectives of one process",
                    "Start several: make bench BENCH=collectives RANKS=4, or scripts/launch.sh, or mpirun.");
    }
    world.guarded([&] {
        for (const auto& [name, path] :
             {std::pair("--picture", asked.picture), std::pair("--write-machine", asked.write_machine)}) {
            if (world.is_first() && !path.empty()) try_output_file(real_files(), name, path);
        }
        cudaStream_t stream = nullptr;
        cudaDeviceProp device{};
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
        {
            Arena arena;
            const bool large = options.long_run || std::strncmp(device.name, "CPU", 3) != 0;
            const std::size_t most = asked.max_bytes > 0 ? asked.max_bytes : std::size_t{1} << (large ? 30 : 24);
            std::vector<CollectiveTime> times = measure_collectives(world, most, 7, arena, stream);
            if (world.is_first()) std::fputs(collectives_table(times).c_str(), stdout);
            if (asked.algorithms) {
                const std::vector<CollectiveTime> more = measure_algorithms(world, most, 7, arena, stream);
                if (world.is_first()) std::fputs(algorithms_table(more).c_str(), stdout);
                times.insert(times.end(), more.begin(), more.end());
            }
            if (world.is_first() && !options.json.empty()) write_json(options.json, collectives_json(times));
            if (world.is_first() && !asked.picture.empty()) {
                write_whole(real_files(), asked.picture, collectives_picture(times));
                std::printf("picture: %s\n", asked.picture.c_str());
            }
            if (!asked.write_machine.empty()) {
                const MeasuredLoad load = measured_load(model_config("gpt2:124M"), large ? 16 : 1, large ? 1024 : 256);
                Machine machine = measure_machine(world, load, nullptr, 0, stream);
                machine.source = text("measured by bench --write-machine with ", world.ranks(), " ranks");
                set_links(machine, times);
                if (world.is_first()) {
                    write_whole(real_files(), asked.write_machine, to_text(to_json(machine), 1) + "\n");
                    std::printf("machine, for train_gpt plan --machine: %s\n", asked.write_machine.c_str());
                }
            }
        }
        CUDA_CHECK(cudaStreamDestroy(stream));
    });
    return 0;
}

int bench_asynchrony(const BenchOptions& options, const std::vector<std::string>& texts, const std::string& picture,
                     cudaStream_t stream) {
    if (!picture.empty()) try_output_file(real_files(), "--picture", picture);
    AsynchronyTrials trials(texts, options.long_run, stream);
    const std::vector<LateTrial> results =
        trials.run([](const LateTrial& trial) { std::printf("%s\n", late_trial_row(trial).c_str()); });
    if (!options.json.empty()) write_json(options.json, late_trials_json(results));
    if (!picture.empty()) {
        write_whole(real_files(), picture, late_trials_picture(results));
        std::printf("picture: %s\n", picture.c_str());
    }
    return 0;
}

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    BenchOptions options;
    CollectivesOptions collectives;
    WorldOptions& layout = collectives.layout;
    CLI::App app("Times every operation of training, beside the machine's own copy and matmul speed.");
    app.add_option("--filter", options.filter, "only operations whose name, or name and shape, match this pattern");
    app.add_flag("--long", options.long_run, "larger shapes, more samples");
    app.add_flag("--list", options.list, "names and shapes, without measuring");
    app.add_option("--json", options.json, "write the results to this file");
    std::vector<CLI::Option*> of_collectives;
    for (auto [name, axis] :
         {std::pair("--pp", &layout.pp), std::pair("--cp", &layout.cp), std::pair("--tp", &layout.tp),
          std::pair("--ep", &layout.ep), std::pair("--zero-group", &layout.zero_group)}) {
        of_collectives.push_back(app.add_option(name, *axis, "of collectives: ranks of this axis, as in train_gpt"));
    }
    of_collectives.push_back(app.add_option("--max-bytes", collectives.max_bytes, "of collectives: the largest vector")
                                 ->check(CLI::Range(std::size_t{64}, std::size_t{1} << 40)));
    of_collectives.push_back(
        app.add_flag("--algorithms", collectives.algorithms,
                     "of collectives: all-reduces by each algorithm of dev/bench/algorithms, too"));
    of_collectives.push_back(
        app.add_option("--picture", collectives.picture,
                       "of collectives, bandwidth over size, and of asynchrony, losses over workers, as SVG"));
    of_collectives.push_back(
        app.add_option("--write-machine", collectives.write_machine,
                       "of collectives: speeds for train_gpt plan --machine, links from the fits"));
    std::vector<std::string> texts;
    CLI::Option* const text_option =
        app.add_option("--text", texts, "of asynchrony: files to train on, byte by byte (default: docs/*.md)");
    CLI11_PARSE(app, argc, argv);
    try {
        if (options.filter == "collectives") return bench_collectives(options, collectives);
        const bool asynchrony = options.filter == "asynchrony";
        if (text_option->count() > 0 && !asynchrony) {
            throw Error(ErrorKind::usage, "--text is of --filter asynchrony", "Give make bench BENCH=asynchrony.");
        }
        for (const CLI::Option* option : of_collectives) {
            if (option->count() == 0 || (asynchrony && option->get_name() == "--picture")) continue;
            throw Error(ErrorKind::usage, option->get_name() + " is of --filter collectives",
                        "Start several processes: make bench BENCH=collectives RANKS=4.");
        }
        cudaStream_t stream = nullptr;
        CUDA_CHECK(cudaSetDevice(0));
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        if (asynchrony) {
            const int code = bench_asynchrony(options, texts, collectives.picture, stream);
            CUDA_CHECK(cudaStreamDestroy(stream));
            return code;
        }
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
