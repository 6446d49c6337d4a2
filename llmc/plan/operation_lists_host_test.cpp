// Lists of what runs give to their devices: a file for each stream of each rank, with a line for each operation, and a
// file for the host's order. They show whether a change of the code has added, left out, changed or reordered an
// operation, or what it waits for (dev/test/same_runs.sh). Nothing is computed: the devices are dry (device.h).
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <sstream>
#include <utility>

#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/cli/command_line.h"
#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/model/decoder.h"
#include "llmc/plan/all_cores.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/run_parts.h"

namespace {

// Texts by the name of their file.
using Lists = std::map<std::string, std::string>;

// Writes a recording as text. Streams are numbered by their first use. An operation's place is its line in its stream's
// file; "after 1:17" waits for line 17 of stream 1 and all before it. Addresses and places in the sources are left out,
// because they may change without a change of the work.
class ListWriter {
public:
    void add(const virtual_clock::RecordedStep& step) {
        using Kind = virtual_clock::RecordedStep::Kind;
        switch (step.kind) {
            case Kind::operation: add_operation(step); break;
            case Kind::event_recorded: recorded_[step.record] = place(stream(step.stream)); break;
            case Kind::event_awaited: stream(step.stream).waits += " " + event(step.record); break;
            case Kind::host_waited_for_stream: host_waits(place(stream(step.stream))); break;
            case Kind::host_waited_for_event: host_waits(event(step.record)); break;
        }
    }

    Lists take() {
        end_launches();
        Lists lists{{"host", host_.str()}};
        for (const auto& [recorded_as, stream] : streams_) {
            const std::string end = stream.waits.empty() ? "" : "end, after" + stream.waits + "\n";
            lists[text("stream", stream.number)] = stream.lines.str() + end;
        }
        return lists;
    }

private:
    struct Stream {
        std::size_t number = 0, operations = 0;
        std::string waits;   // of the next operation
        std::ostringstream lines;
    };

    Stream& stream(int recorded_as) {
        const auto [found, is_new] = streams_.try_emplace(recorded_as);
        if (is_new) found->second.number = streams_.size() - 1;
        return found->second;
    }
    static std::string place(const Stream& stream) { return text(stream.number, ":", stream.operations); }
    std::string event(std::uint64_t record) const {
        const auto found = recorded_.find(record);
        return found == recorded_.end() ? "earlier" : found->second;   // before the recording began
    }

    void add_operation(const virtual_clock::RecordedStep& step) {
        Stream& on = stream(step.stream);
        on.operations++;
        on.lines << step.name << std::setprecision(17);
        if (step.work.flops > 0) on.lines << ", " << step.work.flops << " FLOPs";
        if (step.work.bytes > 0) on.lines << ", " << step.work.bytes << " bytes";
        if (step.work.multiprocessors > 0) on.lines << ", at most " << step.work.multiprocessors << " multiprocessors";
        for (const virtual_clock::Exchange& exchange : step.work.exchanges) {
            on.lines << ", sends " << exchange.sends << " receives " << exchange.receives << " of " << exchange.ranks
                     << " ranks";
        }
        if (!on.waits.empty()) on.lines << ", after" << std::exchange(on.waits, "");
        on.lines << '\n';
        if (launches_on_ != &on) end_launches(), launches_on_ = &on, first_launch_ = on.operations;
    }

    // The host's file has a line for launches on one stream that follow each other, and one for each wait.
    void end_launches() {
        if (launches_on_ == nullptr) return;
        host_ << "launches " << launches_on_->number << ":" << first_launch_ << " to " << place(*launches_on_) << '\n';
        launches_on_ = nullptr;
    }
    void host_waits(const std::string& until) {
        end_launches();
        host_ << "waits for " << until << '\n';
    }

    std::map<int, Stream> streams_;
    std::map<std::uint64_t, std::string> recorded_;   // the place of each event
    std::ostringstream host_;
    Stream* launches_on_ = nullptr;
    std::size_t first_launch_ = 0;
};

Lists lists_of(const virtual_clock::Recording& recording) {
    ListWriter writer;
    for (const virtual_clock::RecordedStep& step : recording) writer.add(step);
    return writer.take();
}

// Runs body(stream, arena, record) on a dry device; returns the lists of the work that it gives to `record`.
template <class Body>
Lists dry_lists(const Body& body) {
    Lists lists;
    stand_in()->on_dry_device([&] {
        OwnedStream stream;
        Arena arena;
        body(stream.get(), arena, [&](const std::function<void()>& work) { lists = lists_of(host::record(work)); });
    });
    return lists;
}

// Two training steps, as the second finds what the first has left, then the forwards of a validation and of a sample.
Lists training_of(const PlannedRun& run, int rank) {
    return dry_lists([&](cudaStream_t stream, Arena& arena, const auto& record) {
        const Options& options = run.options;
        World world = run.mesh.size() == 1 ? World() : World(run.mesh, rank, options.comm_sms);
        RunParts parts(options, run.config, world, arena, stream);
        Step& step = parts.make_step(options, arena);
        const PipelineSchedule schedule =
            options.pp > 1 ? schedule_of_stage(options, world.at().pp) : one_stage_schedule(options.micro_steps());
        auto read = [](int, const MicroBatch& to) {
            std::ranges::fill(to.tokens, 0), std::ranges::fill(to.targets, 0), std::ranges::fill(to.starts, 0);
        };
        const auto logits = arena.allocate<floatX>("logits", static_cast<std::size_t>(parts.stage.logits_columns()));
        record([&] {
            for (int number = 1; number <= 2; number++) {
                step.gradients(schedule, read, 1.0f);
                step.update(number, 1e-3f);
                step.result();
            }
            step.wait_for_all_gather();
            step.forward(read, Purpose::loss);
            step.forward(read, Purpose::logits);
            step.logits(logits.data(), 0);
        });
    });
}

// A prompt of nine tokens, and two tokens more.
Lists generation_of(const PlannedRun& run) {
    return dry_lists([&](cudaStream_t stream, Arena& arena, const auto& record) {
        Decoder decoder(run.config, arena, stream);
        const std::vector<std::int32_t> tokens(9);
        record([&] {
            decoder.read(tokens);
            for (int i = 0; i < 2; i++) decoder.read(std::span(tokens).first(1));
        });
    });
}

void write(const std::filesystem::path& folder, const Lists& lists) {
    std::filesystem::create_directories(folder);
    for (const auto& [name, lines] : lists) {
        std::ofstream out(folder / name);
        out << lines << std::flush;
        REQUIRE(out.good());
    }
}

// `line`: a run's name, its number of ranks, and its other options.
void write_lists_of_run(const std::filesystem::path& folder, const std::string& line) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string name, ranks;
    words >> name >> ranks;
    std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
    arguments.insert(arguments.end(), {"--processes", ranks});
    PlannedRun run = planned_run(parse_command_line(arguments).options);
    if (!run.options.recompute)
        run.options.recompute = Recompute::none;   // --recompute auto: all that small models need
    on_all_cores(run.mesh.size(), [&](int rank) { write(folder / name / text("rank", rank), training_of(run, rank)); });
    if (run.mesh.size() == 1) write(folder / name / "generate", generation_of(run));
}

}   // namespace

TEST_CASE("operation lists: an operation's line says what it does and waits for, the host's what it launches when") {
    const Lists lists = dry_lists([&](cudaStream_t stream, Arena& arena, const auto& record) {
        const auto buffer = arena.allocate<float>("buffer", 8);
        const OwnedStream beside;
        const OwnedEvent filled, done;
        auto fill = [&](cudaStream_t on, std::size_t bytes) {
            CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, bytes, on));
        };
        filled.record(stream);
        record([&] {
            filled.wait(stream);
            fill(stream, 4), fill(stream, 8);
            filled.record(stream);
            filled.wait(beside.get());
            fill(beside.get(), 16);
            done.record(beside.get());
            fill(stream, 32);
            done.wait(stream);
            wait_for(done.get());
            wait_for(stream);
        });
    });
    CHECK(lists.size() == 3);
    CHECK(lists.at("stream0") ==
          "cudaMemsetAsync, 4 bytes, after earlier\ncudaMemsetAsync, 8 bytes\ncudaMemsetAsync, 32 bytes\n"
          "end, after 1:1\n");
    CHECK(lists.at("stream1") == "cudaMemsetAsync, 16 bytes, after 0:2\n");
    CHECK(lists.at("host") ==
          "launches 0:1 to 0:2\nlaunches 1:1 to 1:1\nlaunches 0:3 to 0:3\nwaits for 1:1\nwaits for 0:3\n");
}

// Run by dev/test/same_runs.sh, with the runs on standard input.
TEST_CASE("operation lists: of runs, written to the folder OPERATION_LISTS" * doctest::skip()) {
    const char* const folder = std::getenv("OPERATION_LISTS");
    if (folder == nullptr) return;
    for (std::string line; std::getline(std::cin, line);) write_lists_of_run(folder, line);
}
