// The training loop with local steps: what moves between replicas, and when; runs cut between moves and resumed.
#include <map>
#include <utility>

#include "dev/test/layouts/layout_run_testing.h"
#include "llmc/model/download_testing.h"

using namespace layout_runs;

namespace {

// Layouts of replicas of `ranks` of dp x cp ranks each.
std::vector<Layout> replicas_with(const LocalSteps& local) {
    std::vector<Layout> layouts{{2, 0},
                                {4, 0},
                                {4, 1},
                                {4, 2},
                                {4, 3},
                                all_axes(2, 1, 1, 2, 0),
                                all_axes(1, 2, 1, 2, 0),
                                context(2, 1, true, 2, 1)};
    const int ranks[] = {1, 2, 2, 2, 2, 1, 1, 2};
    for (std::size_t i = 0; i < layouts.size(); i++) {
        layouts[i].local = local, layouts[i].replica_ranks = ranks[i], layouts[i].clips = false;
    }
    return layouts;
}

}   // namespace

// A rule that is linear in gradients makes of their mean the mean of what it makes of each.
TEST_CASE("layouts: one local step at a time, and the average taken as it is, are steps together") {
    compare_runs(replicas_with({.every = 1, .lr = 1, .momentum = 0}), OptimizerKind::sgd);
    Layout one{2, 1};
    one.local = {.every = 1, .lr = 1, .momentum = 0}, one.replica_ranks = 2;
    compare_runs({one});
}

TEST_CASE("layouts: local steps of models with experts, likewise, dealt out within a replica or whole on each rank") {
    std::vector<Layout> layouts{{4, 1}, {4, 3}, {8, 2}, all_axes(2, 1, 1, 2, 0), {2, 0}, {8, 0}};
    const int ranks[] = {2, 2, 4, 1, 1, 4}, ep[] = {2, 2, 2, 2, 1, 2};
    for (std::size_t i = 0; i < layouts.size(); i++) {
        layouts[i].local = {.every = 1, .lr = 1, .momentum = 0}, layouts[i].replica_ranks = ranks[i];
        layouts[i].ep = ep[i], layouts[i].clips = false;
        layouts[i].experts = 2;   // which each token goes to, both: roundings choose no other ones
    }
    compare_runs(layouts, OptimizerKind::sgd);
    for (Layout& layout : layouts) layout.local = {.every = 3}, layout.experts = 4, layout.router_biases = true;
    compare_runs({layouts[0], layouts[2], layouts[3], layouts[4], layouts[5]});
}

TEST_CASE("layouts: between replicas only a move sends, 8 P (R - 1) / R bytes of what a rank owns") {
    const Workplace place;
    for (Layout layout : replicas_with({.every = 3})) {   // so the last of four steps moves too
        Options options = options_of(layout, place.folder / "bytes, " + layout.name());
        options.val_every = 0;
        on_layout(layout, options, [&](RankOfRun& rank) {
            rank.groups.outer->reset_traffic();
            rank.train(place, "");   // four steps
            double owned = 0;
            for (const TensorLayout& tensor : rank.model.storage().tensors()) {
                owned += static_cast<double>(rank.model.storage().padded_elements(tensor, StateKind::optimizer));
            }
            const double R = rank.model.options().replicas, bytes = rank.groups.outer->traffic().total();
            ENSURE(bytes == 2 * 8 * owned * (R - 1) / R, "two moves of ", owned, " elements sent ", bytes, " bytes");
        });
    }
}

namespace {

// The bits of the heads that a rank and others hold copies of, in a state of the optimizer.
std::string copied_heads(RankOfRun& rank, const char* state) {
    std::string bits;
    const ModelState<float>& weights = rank.step->optimizer().state(state);
    for (const TensorLayout& place : weights.storage().tensors()) {
        const auto buffer = weights.unit(place.slot);
        const auto begin = static_cast<std::size_t>(weights.owned(place.param) - buffer.data());
        for (const OwnedRange& range : owned_ranges(rank.model.table()[place.param].tensor, weights.storage().place(),
                                                    StateKind::optimizer, Heads::copied)) {
            const std::vector<float> values =
                buffer.download(rank.model.stream(), begin + static_cast<std::size_t>(range.local_begin),
                                static_cast<std::size_t>(range.length));
            bits.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        }
    }
    return bits;
}

}   // namespace

// All ranks of a replica but its first find other sums, as groups that add in other orders may; copies must be alike.
TEST_CASE("layouts: after a move ranks that hold copies have the first one's sums") {
    std::vector<Layout> layouts{{6, 0},
                                all_axes(2, 1, 1, 2, 0),
                                all_axes(2, 1, 1, 4, 1),
                                all_axes(1, 2, 1, 3, 0),
                                all_axes(2, 2, 1, 4, 0),
                                context(2, 0, true, 2, 1),
                                all_axes(2, 1, 1, 3, 0)};
    const int ranks[] = {2, 1, 2, 1, 2, 2, 1};
    for (std::size_t i = 0; i < layouts.size(); i++)
        layouts[i].local = {.every = 2}, layouts[i].replica_ranks = ranks[i];
    layouts.back().llama = true;   // one head of keys and values, which both tp ranks hold
    Layout dealt{8, 0};            // pairs of ranks hold the same experts
    dealt.local = {.every = 2}, dealt.replica_ranks = 4, dealt.experts = 4, dealt.ep = 2;
    layouts.push_back(dealt);
    for (const OuterCompression compression :
         {OuterCompression::int8, OuterCompression::int2_, OuterCompression::topk}) {
        Layout compressed = layouts[6];
        compressed.local.compression = compression;
        layouts.push_back(compressed);
    }
    const Workplace place;
    for (const Layout& layout : layouts) {
        for (const bool wrong : {false, true}) {
            Options options = options_of(layout, place.folder / text(layout.name(), ", wrong ", wrong));
            options.val_every = 0, options.max_steps = 2;
            if (layout.llama)
                options.architecture["bias"] = 1;   // a block has biases of queries, which differ, and keys
            on_layout(layout, options, [&](RankOfRun& rank) {
                const bool is_first = rank.model.options().place.at == MeshCoordinates{};
                if (wrong && !is_first) {
                    rank.groups.outer->set_tap([](const CommCall& call, const Communicator::Make& make) {
                        make(call);
                        make(call);
                    });
                }
                rank.train(place, "");
                rank.groups.outer->set_tap(nullptr);
                const ReplicaHashes hashes = replica_hashes(tensors_of(*rank.step), rank.model.stream());
                const std::string differs = differing_replicas(rank.world->gather_text(hashes.tensors));
                ENSURE(differs.empty(), differs);
                std::vector<const char*> states{"outer_weights"};
                if (layout.local.compression != OuterCompression::none) states.push_back("outer_error");
                for (const char* state : states) {
                    std::string own = copied_heads(rank, state);
                    if (rank.model.options().replica != 0 && states.size() > 1) own = {};
                    const std::vector<std::string> heads = rank.world->gather_text(own);
                    ENSURE(heads[0].empty() != layout.llama, "which heads have copies");
                    for (const std::string& of_one : heads) {
                        ENSURE(of_one == heads[0] || of_one.empty(), "copies of heads differ in ", state);
                    }
                }
            });
        }
    }
}

TEST_CASE("layouts: a compressed move makes two collectives for each unit") {
    const Workplace place;
    for (Layout layout : {Layout{4, 0}, Layout{4, 1}, all_axes(1, 2, 1, 2, 0)}) {
        layout.local = {.every = 2, .compression = OuterCompression::int8};
        layout.replica_ranks = layout.dp / 2;
        Options options = options_of(layout, place.folder / "collectives, " + layout.name());
        options.val_every = 0, options.max_steps = 2;
        on_layout(layout, options, [&](RankOfRun& rank) {
            std::size_t collectives = 0;   // calls of one kind that follow one another
            bool gathered = true;
            rank.groups.outer->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                const bool gathers = std::string(call.operation) == "all-gather";
                if (gathers != std::exchange(gathered, gathers)) collectives++;
                make(call);
            });
            rank.train(place, "");
            rank.groups.outer->set_tap(nullptr);
            std::map<int, int> units;
            for (const TensorLayout& tensor : rank.model.storage().tensors()) units[tensor.slot]++;
            ENSURE(collectives == 2 * units.size(), collectives, " collectives for ", units.size(), " units");
        });
    }
}

TEST_CASE("layouts: replicas move after a step whose update the trainer leaves out") {
    OutlierDetector low;   // full of losses far below this model's
    for (int i = 0; i < OutlierDetector::kWindow; i++) low.update(1e-3 * (1 + i % 2));
    Layout layout{4, 1};
    layout.local = {.every = 2}, layout.replica_ranks = 2;
    const Workplace place;
    std::map<bool, std::string> weights;   // whether step 2 is left out: after it
    for (const bool skips : {false, true}) {
        Options options = options_of(layout, place.folder / text("skips ", skips));
        options.val_every = 0, options.max_steps = 2, options.skip_loss_z = 3.0f;
        options.stop_after = 1;
        if (!on_layout(layout, options, [&](RankOfRun& rank) { rank.train(place, ""); })) return;
        options.stop_after = 0;
        on_layout(layout, options, [&](RankOfRun& rank) {
            rank.train(place, options.output_dir + "/" + checkpoint_name(1), [&](RunState& state, const TokenSet&) {
                if (skips) state.loss_outliers = low.state();
            });
            const ModelState<floatX>& parameters = rank.model.parameters();
            const std::vector<float> own =
                download_tensor(parameters, parameters.index("wte.weight"), rank.model.stream());
            const std::vector<std::string> of_all =
                rank.world->gather_text({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(float)});
            for (const std::string& other : of_all) ENSURE(other == of_all[0], "no move after step 2");
            if (rank.world->is_first()) weights[skips] = of_all[0];
        });
        weights[skips] = from_first_process(weights[skips]);
    }
    CHECK(weights[true] != weights[false]);   // else no update was left out
}

TEST_CASE("layouts: the slowest rank of all is told though each replica has one data-parallel rank") {
    const Workplace place;
    Layout layout{2, 0};
    layout.local = {.every = 2}, layout.replica_ranks = 1;
    const Options options = options_of(layout, place.folder / "slowest");
    if (!on_layout(layout, options, [&](RankOfRun& rank) { rank.train(place, ""); })) return;
    const std::string metrics = read_whole(real_files(), options.output_dir + "/metrics.jsonl");
    CHECK(metrics.find("\"slowest_rank\":") != std::string::npos);
}

TEST_CASE("layouts: local steps cut between two moves and resumed to the bit") {
    std::vector<Layout> layouts = replicas_with({.every = 3});
    for (Layout& layout : layouts) layout.clips = true;
    compare_runs(layouts);
    compare_runs({layouts[2]}, OptimizerKind::muon);
}

// Copies must come to the same bits by themselves: after such a move only copied heads are shared inside a replica.
TEST_CASE("layouts: local steps whose moves travel in 8 or 2 bits or the largest alone, likewise") {
    for (const OuterCompression compression :
         {OuterCompression::int8, OuterCompression::int2_, OuterCompression::topk}) {
        std::vector<Layout> layouts = replicas_with({.every = 3, .compression = compression});
        for (Layout& layout : layouts) layout.clips = true;
        compare_runs({layouts[1] /* copies at stage 0 */, layouts[3], layouts[4], layouts[5] /* tp */,
                      layouts[6] /* tied ends */});
    }
}

// Step 2, after which runs are cut, has one fragment on its way.
TEST_CASE("layouts: local steps whose fragments travel beside the steps, likewise") {
    const LocalSteps local{.every = 3, .fragments = 2, .delay = 2, .blend = 0.25f};
    std::vector<Layout> layouts = replicas_with(local);
    for (Layout& layout : layouts) layout.clips = true;
    compare_runs(layouts);
    for (Layout& layout : layouts) layout.local.compression = OuterCompression::int8;
    compare_runs({layouts[1] /* copies at stage 0 */, layouts[4], layouts[5] /* tp */, layouts[6] /* tied ends */});
}

TEST_CASE("layouts: Muon in replicas of one rank and of several whose moves travel in 2 bits, likewise") {
    const std::vector<Layout> layouts = replicas_with({.every = 3, .compression = OuterCompression::int2_});
    compare_runs({layouts[0], layouts[2] /* two ranks, stage 1 */, layouts[5] /* tp */}, OptimizerKind::muon);
}
