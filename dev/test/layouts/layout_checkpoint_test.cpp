// Checkpoints of any layout: the same bytes, and a return to the last one when the loss has an outlier.
#include <filesystem>
#include <map>
#include <regex>

#include "dev/test/layouts/layout_run_testing.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/run/evaluation/sampler.h"

using namespace layout_runs;

TEST_CASE("layouts: the checkpoint of a state is the same bytes, whatever layout writes it") {
    const Workplace place;
    Options options = options_of({}, place.folder / "origin");
    on_layout({0, 0}, options, [&](RankOfRun& rank) { rank.train(place, ""); });
    const std::string origin = place.folder / "origin" + "/" + checkpoint_name(4);
    const std::map<std::string, std::string> expected = files_of(origin);
    // writes with these weights on one process
    auto written_by = [](RankOfRun& rank) {
        return Sampler(*rank.step, rank.arena, std::nullopt, SamplerOptions{8, 1.0f, 5}).sample(4) +
               Sampler(*rank.step, rank.arena, std::nullopt, SamplerOptions{24, 0.0f, 5}).sample(4);
    };
    std::string sample;
    on_layout({0, 0}, options, [&](RankOfRun& rank) {
        rank.load(origin);
        sample = written_by(rank);
    });
    sample = from_first_process(sample);
    CHECK(expected.size() >= 4);
    for (const Layout& layout : {Layout{1, 3},
                                 Layout{2, 0},
                                 Layout{2, 3},
                                 Layout{3, 0},
                                 Layout{3, 1},
                                 Layout{3, 2},
                                 Layout{3, 3},
                                 Layout{4, 2},
                                 Layout{8, 3},
                                 Layout{1, 0, masters, true, 2},
                                 Layout{3, 2, masters, true, 2, false},
                                 pipeline(1, 0, 2),
                                 pipeline(2, 3, 2),
                                 context(1, 0, true, 2, 1),
                                 context(2, 3, true, 2, 2),
                                 context(1, 1, true, 4, 2),
                                 all_axes(2, 2, 1, 2, 3),
                                 all_axes(1, 2, 2, 2, 1),
                                 all_axes(2, 1, 2, 1, 2),
                                 all_axes(2, 2, 2, 1, 3)}) {
        INFO(layout.name());
        const std::string copy = place.folder / layout.name();
        const bool ran = on_layout(layout, options_of(layout, copy), [&](RankOfRun& rank) {
            const RunState state = rank.load(origin);
            // pieces that divide no shard
            const Gatherer gatherer(rank.model.storage(), rank.groups.stage, true, rank.arena, rank.model.stream(), 100,
                                    rank.groups.all);
            Agreement agreement(rank.arena, rank.groups.all, rank.world, place.signals, rank.model.stream());
            const FullArena full(rank.arena);
            save_training_state(
                real_files(), copy, state, tensors_of(*rank.step), {}, gatherer,
                {agreement.rank(), agreement.ranks(), [&](const std::string& own) { return agreement.gather(own); }});
            full.require_untouched("a checkpoint");
            const std::string own_sample = written_by(rank);   // tp ranks round logits differently
            ENSURE(layout.tp > 1 || own_sample == sample, "another sample than one process writes");
            rank.train(place, origin);   // no step is left: writes the weights as they are
        });
        if (!ran) continue;
        CHECK(read_whole(real_files(), copy + ".llmc") == read_whole(real_files(), place.folder / "origin.llmc"));
        CHECK(files_of(copy + "/" + checkpoint_name(4)) == expected);
    }
}

namespace {

// Reads checkpoints only for a rank that has told the others that it works alone.
struct LonelyFiles : ForwardingFiles {
    LonelyFiles(FileSystem& inner, const Communicator* its_all) : ForwardingFiles(inner), all(its_all) {}
    std::unique_ptr<File> open(const std::string& path) const override {
        if (path.find("/step_") != std::string::npos) {
            read = true;
            ENSURE(all == nullptr || all->progress().local_work != nullptr, path, " is read while others wait unaware");
        }
        return inner_.open(path);
    }
    const Communicator* all;
    mutable bool read = false;
};

}   // namespace

TEST_CASE(
    "layouts: back from an outlier to the last checkpoint, a run goes on as one resumed there past those samples") {
    constexpr int spike = 5, saved = 2;
    // the window of a run just before it is full, of losses far below this model's: the third loss from here is an
    // outlier
    OutlierDetector low;
    for (int i = 0; i < OutlierDetector::kWindow - (spike - saved - 1); i++) low.update(1e-3 * (1 + i % 2));
    for (const Layout& layout : {Layout{0, 0}, Layout{2, 1}, all_axes(2, 1, 1, 2, 1), pipeline(2, 1, 2)}) {
        INFO(layout.name());
        const Workplace place;
        // from a copy of what the first steps have left
        auto run = [&](const std::string& name, const RankOfRun::Change& change) {
            Layout asked = layout;
            asked.dp = std::max(layout.dp, 1);
            Options options = options_of(asked, place.folder / name);
            options.max_steps = 8, options.checkpoint_every = 100;
            options.skip_loss_z = 3.0f, options.spike_rewind = 1;
            options.stop_after = change ? 0 : saved;
            if (change) {
                in_first_process([&] {
                    std::filesystem::copy(place.folder / "begun", options.output_dir,
                                          std::filesystem::copy_options::recursive);
                });
            }
            const std::string from = change ? options.output_dir + "/" + checkpoint_name(saved) : "";
            return on_layout(layout, options, [&](RankOfRun& rank) {
                LonelyFiles files(real_files(), rank.groups.all);
                rank.train(place, from, change, files);
                ENSURE(files.read == (name == "spike"), "a checkpoint was read");
            });
        };
        auto past = [&](int samples) {
            return [samples](RunState& state, const TokenSet& tokens) {
                Loader loader(tokens, state.seed);
                loader.seek(state.loader);
                loader.advance(static_cast<std::uint64_t>(samples));
                state.loader = loader.state();
            };
        };
        if (!run("begun", {})) continue;
        run("spike", [&](RunState& state, const TokenSet&) { state.loss_outliers = low.state(); });
        const int skipped = (spike - saved) * sequences;
        run("resumed", past(skipped));
        run("one too few", past(skipped - 1));
        auto records = [&](const char* name) {
            return without_times(read_whole(real_files(), place.folder / name + "/metrics.jsonl"));
        };
        auto end = [&](const char* name) { return files_of(place.folder / name + "/" + checkpoint_name(8)); };
        const std::regex rewind(text("\\{\"step\":2,\"rewind_from\":5,[^}]*\"skipped_samples\":", skipped, "\\}\n"));
        CHECK(std::regex_search(records("spike"), rewind));
        CHECK(std::regex_replace(records("spike"), rewind, "") == records("resumed"));
        CHECK(end("spike") == end("resumed"));
        CHECK(end("spike") != end("one too few"));
    }
}
