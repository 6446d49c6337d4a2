// The training loop over several ranks: the same samples, losses and decisions as one process, cut and resumed to the
// bit.
#include "dev/test/layouts/layout_run_testing.h"

using namespace layout_runs;

TEST_CASE("layouts: losses and validation are those of one process, cut and resumed to the bit") {
    std::vector<Layout> layouts{{1, 3},
                                {2, 0},
                                {2, 1},
                                {3, 2},
                                {3, 3, no_masters},
                                {4, 3, halves},
                                {2, 1, masters, false},
                                {3, 3, halves, false}};
    layouts[2].moments = layouts[5].moments = DType::bf16;
    compare_runs(layouts);
}

TEST_CASE(
    "layouts: losses and validation under tensor parallelism are those of one process, cut and resumed to the bit") {
    compare_runs({{1, 0, masters, false, 2}, {2, 3, masters, false, 2}, {2, 1, no_masters, false, 2, false}});
}

TEST_CASE("layouts: pipelines, likewise") { compare_runs({pipeline(1, 0, 2), pipeline(2, 3, 2, PipelineKind::gpipe)}); }

TEST_CASE("layouts: all axes together are one process, cut and resumed to the bit") {
    compare_runs({all_axes(2, 2, 1, 2, 1), all_axes(1, 2, 2, 1, 3), all_axes(2, 1, 2, 1, 2, false),
                  all_axes(2, 2, 2, 1, 1, false, PipelineKind::gpipe)});
}

TEST_CASE(
    "layouts: documents that are masked, with no loss at their ends, are one process, cut and resumed to the bit") {
    std::vector<Layout> layouts{context(2, 1, true, 2, 1), context(1, 0, false, 2, 2), all_axes(2, 2, 1, 2, 1)};
    for (Layout& layout : layouts) layout.documents = true;
    compare_runs(layouts);
}

namespace {

constexpr int changing_layers = 4;   // as two stages of two chunks need

// A layout of up to 8 ranks that this model fits.
Layout any_layout(std::uint64_t key) {
    constexpr PipelineKind kinds[] = {PipelineKind::one_f_one_b, PipelineKind::gpipe, PipelineKind::naive,
                                      PipelineKind::zero_bubble, PipelineKind::interleaved};
    auto draw = [&key](int count) {
        key = mix64(key);
        return static_cast<int>((key >> 33) % static_cast<std::uint64_t>(count));
    };
    for (;;) {
        const int cp = 1 << draw(3), dps[] = {1, 2, 3, 4};
        Layout layout = all_axes(1 + draw(2), 1 + draw(2), cp, dps[draw(4)], draw(4), draw(2) == 0, kinds[draw(5)]);
        layout.sequence_parallel = draw(2) == 0;
        if (layout.tp == 1 && cp > 1) layout.ulysses = 1 + draw(2);
        if (layout.dp * layout.cp == 1) layout.zero = 0;
        layout.layers = changing_layers;
        layout.recompute = static_cast<Recompute>(draw(4));
        if (layout.pp == 1) layout.schedule = PipelineKind::one_f_one_b;
        if (layout.schedule == PipelineKind::interleaved) layout.pp_chunks = 2, layout.accumulates = true;
        if (layout.mesh().size() <= 8) return layout;
    }
}

// Two steps under one layout, and two more under another.
void change_layouts(int pairs, std::uint64_t key, OptimizerKind optimizer = OptimizerKind::adamw) {
    const Workplace place;
    auto run = [&](const Layout& layout, const std::string& name, int stop_after, const std::string& resume_from) {
        Options options = options_of(layout, place.folder / name);
        options.stop_after = stop_after;
        return on_layout(layout, options, [&](RankOfRun& rank) { rank.train(place, resume_from); });
    };
    auto losses_of = [&](const std::string& name) {
        return losses_in(read_whole(real_files(), place.folder / name + "/metrics.jsonl"));
    };
    Layout alone{1, 0};
    alone.layers = changing_layers, alone.optimizer = optimizer;
    run(alone, "alone", 0, "");
    const std::vector<double> expected = losses_of("alone");
    for (int i = 0; i < pairs; i++) {
        Layout from = any_layout(mix64(key) + static_cast<std::uint64_t>(2 * i)),
               to = any_layout(mix64(key) + static_cast<std::uint64_t>(2 * i + 1));
        from.optimizer = to.optimizer = optimizer;
        INFO(from.name(), " -> ", to.name());
        const std::string name = text("pair ", i);
        if (!run(from, name, 2, "")) continue;
        if (!run(to, name, 0, place.folder / name + "/" + checkpoint_name(2))) continue;
        const std::vector<double> losses = losses_of(name);
        REQUIRE(losses.size() == expected.size());
        for (std::size_t k = 0; k < losses.size(); k++) CHECK(std::abs(losses[k] / expected[k] - 1) < loss_tolerance);
    }
}

}   // namespace

TEST_CASE("layouts: cut under one and resumed under another they go on as one process does") { change_layouts(3, 1); }
TEST_CASE("layouts: other optimizers, likewise; cut and resumed to the bit") {
    compare_runs({{2, 1}, all_axes(2, 2, 1, 2, 1), {3, 2}}, OptimizerKind::muon);
    compare_runs({all_axes(2, 1, 1, 2, 1)}, OptimizerKind::lamb);
    compare_runs({{3, 3}}, OptimizerKind::lars);
    change_layouts(2, 3, OptimizerKind::muon);
    change_layouts(1, 4, OptimizerKind::lamb);
}

TEST_CASE("layouts: Muon and LAMB of a Llama, likewise") {
    for (const OptimizerKind rule : {OptimizerKind::muon, OptimizerKind::lamb}) {
        std::vector<Layout> layouts{{2, 1}, all_axes(2, 2, 1, 2, 1), {3, 2}, all_axes(1, 1, 2, 2, 3)};
        for (Layout& layout : layouts) layout.llama = true;
        compare_runs(layouts, rule);
    }
}
TEST_CASE("layouts: other optimizers under all of dp 1, 2, 3, 4 x ZeRO 0-3, and 10 pairs each" * doctest::skip()) {
    for (const auto& [name, kind] : EnumNames<OptimizerKind>::list) {
        std::vector<Layout> layouts{all_axes(2, 2, 1, 2, 1), all_axes(2, 1, 2, 2, 1), all_axes(1, 2, 2, 2, 1)};
        for (int dp : {1, 2, 3, 4}) {
            for (int zero : {0, 1, 2, 3}) layouts.push_back({dp, zero});
        }
        compare_runs(layouts, kind);
        change_layouts(10, 5, kind);
    }
}
TEST_CASE("layouts: 30 pairs cut under one and resumed under another go on as one process does" * doctest::skip()) {
    change_layouts(30, 2);
}

// A step over the whole file, and the validation before it: both are means over the positions that have a loss,
// which an untrained model finds as likely as any other.
TEST_CASE("layouts: the ends of documents leave the loss and its count once, in training and in validation") {
    const Workplace place;
    in_first_process([&] {
        std::vector<std::uint32_t> ids;
        for (std::uint32_t i = 0; i < sequences * T + 1; i++)
            ids.push_back(mix64(i) % 3 == 0 ? 0 : 1 + i * i % (vocab - 1));
        write_token_file(real_files(), place.folder / "documents.bin", TokenFormat::gpt2, ids);
    });
    std::vector<Layout> layouts{{}, {2, 1}, context(1, 0, true, 2, 1), pipeline(1, 0, 2), all_axes(2, 1, 2, 2, 1)};
    for (Layout& layout : layouts) {
        layout.documents = true;
        Options options = options_of(layout, place.folder / layout.name());
        options.max_steps = 1, options.val_every = 1, options.val_max_batches = -1;
        if (!on_layout(layout, options, [&](RankOfRun& rank) { rank.train(place, ""); })) continue;
        const std::vector<double> losses = losses_in(read_whole(real_files(), options.output_dir + "/metrics.jsonl"));
        CAPTURE(layout.name());
        REQUIRE(losses.size() == 3);   // validation, step, validation
        CHECK(std::abs(losses[0] / std::log(vocab) - 1) < 0.02);
        CHECK(std::abs(losses[1] / losses[0] - 1) < loss_tolerance);
    }
}

TEST_CASE("layouts: losses and validation of ranks that share sequences are those of one process, cut and resumed") {
    compare_runs({context(2, 3, false, 2, 2), context(1, 1, false, 4, 2)});
}

TEST_CASE("layouts: the same under all of dp 1, 2, 3, 4, 6, 8 x ZeRO 0-3" * doctest::skip()) {
    std::vector<Layout> layouts;
    for (int dp : {1, 2, 3, 4, 6, 8}) {
        for (int zero : {0, 1, 2, 3}) {
            layouts.push_back({dp, zero});
            layouts.push_back({dp, zero, no_masters});
            layouts.push_back({dp, zero, masters, false});
        }
    }
    compare_runs(layouts);
}

TEST_CASE("layouts: with gradients that are applied a step late, likewise") {
    std::vector<Layout> layouts{{1, 0},
                                {2, 0},
                                {2, 1},
                                {3, 1, no_masters},
                                {2, 1, masters, false, 2},
                                pipeline(2, 1, 2),
                                context(2, 1, true, 2, 1),
                                all_axes(2, 2, 1, 2, 0)};
    for (Layout& layout : layouts) layout.staleness = 1;
    compare_runs(layouts);
    compare_runs({layouts[2], layouts[7]}, OptimizerKind::muon);
    compare_runs({layouts[2]}, OptimizerKind::lamb);
}

// Each layout with every compression, or with every second one.
static void compare_compressed(std::size_t stride) {
    std::vector<Layout> layouts{{2, 0},
                                {2, 1},
                                {3, 1, no_masters},
                                {2, 1, masters, false, 2},
                                pipeline(2, 1, 2),
                                context(1, 0, true, 2, 1),
                                all_axes(2, 2, 1, 2, 0)};
    std::size_t begin = 0;
    for (const GradCompression how :
         {GradCompression::int8, GradCompression::bf16_, GradCompression::topk, GradCompression::powersgd}) {
        std::vector<Layout> chosen;
        for (std::size_t i = begin++ % stride; i < layouts.size(); i += stride) {
            chosen.push_back(layouts[i]);
            chosen.back().compression = how;
        }
        compare_runs(chosen);
    }
    layouts[0].compression = GradCompression::powersgd;
    Layout llama = all_axes(2, 1, 1, 2, 1);   // whose tp ranks have copies of heads
    llama.llama = true, llama.compression = GradCompression::int8;
    compare_runs({llama});
    compare_runs({layouts[0]}, OptimizerKind::lamb);
    std::vector<Layout> groups{{4, 2}, all_axes(2, 1, 1, 4, 1), all_axes(1, 2, 1, 4, 3), context(2, 1, true, 2, 1)};
    for (Layout& layout : groups) layout.replica_ranks = 2, layout.compression = GradCompression::int8;
    compare_runs(groups);
}
TEST_CASE("layouts: with compressed gradients, likewise, near those of one process") { compare_compressed(2); }
TEST_CASE("layouts: the same, each with every compression" * doctest::skip()) { compare_compressed(1); }
