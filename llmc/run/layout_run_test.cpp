// The training loop over several ranks: the same samples, losses and decisions as one process, cut and resumed to the
// bit, and checkpoints that do not show which layout wrote them.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <utility>

#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/data/questions.h"
#include "llmc/data/token_file.h"
#include "llmc/data/wide_tokenizer_testing.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/model/download_testing.h"
#include "llmc/model/reference/reference_gpt_testing.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/parallel/mesh_cut_points.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/option_names.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/without_times_testing.h"

namespace {

constexpr int vocab = 61, sequences = 24, T = 16;   // a step: what 1, 2, 3, 4, 6 and 8 ranks can share
constexpr double loss_tolerance = sizeof(floatX) == 4 ? 1e-5 : 5e-4;   // docs/numerics.md, "How close"

struct Layout {
    int dp = 1, zero = 0;
    bool master_weights = true;
    bool accumulates = true;   // a step: many micro-batches of one sequence, or all of them in one
    int tp = 1;
    bool sequence_parallel = true;
    int pp = 1;
    PipelineKind schedule = PipelineKind::one_f_one_b;
    int cp = 1, ulysses = 1;
    int pp_chunks = 1, layers = 2;
    Recompute recompute = Recompute::gelu;
    OptimizerKind optimizer = OptimizerKind::adamw;
    bool documents = false;   // masked, with no loss at their ends
    bool llama = false;       // a model of Llama's kind, else a GPT-2
    LocalSteps local = {};
    int replica_ranks = 0;   // of dp x cp, with local steps
    int staleness = 0;
    GradCompression compression = GradCompression::none;
    bool clips = true;   // gradients; a norm of a replica's is another one than that of all
    MeshShape mesh() const { return {pp, dp, cp, tp, replica_ranks == dp * cp ? 0 : replica_ranks}; }
    std::string name() const {
        return text(llama ? "Llama, " : "", name_of(optimizer), ", ", "dp ", dp, ", zero ", zero,
                    master_weights ? "" : ", no masters", accumulates ? "" : ", at once",
                    tp > 1 ? text(", tp ", tp, sequence_parallel ? "" : " not sequence-parallel") : "",
                    pp > 1 ? text(", pp ", pp, ", ", name_of(schedule)) : "",
                    cp > 1 ? text(", cp ", cp, ", ulysses ", ulysses) : "",
                    local.every > 0 ? text(", ", local.every, " local steps of ", replica_ranks, " ranks",
                                           local.compression == OuterCompression::int8 ? " in 8 bits" : "")
                                    : "",
                    staleness > 0 ? ", late" : "",
                    compression != GradCompression::none ? text(", gradients in ", name_of(compression)) : "",
                    ", recompute ", name_of(recompute));
    }
};

Layout pipeline(int dp, int zero, int pp, PipelineKind schedule = PipelineKind::one_f_one_b) {
    Layout layout{dp, zero};
    layout.pp = pp, layout.schedule = schedule;
    return layout;
}
Layout context(int dp, int zero, bool accumulates, int cp, int ulysses) {
    Layout layout{dp, zero, true, accumulates};
    layout.cp = cp, layout.ulysses = ulysses;
    return layout;
}
Layout all_axes(int tp, int pp, int cp, int dp, int zero, bool accumulates = true,
                PipelineKind schedule = PipelineKind::one_f_one_b) {
    Layout layout = context(dp, zero, accumulates, cp, 1);
    layout.tp = tp, layout.pp = pp, layout.schedule = schedule;
    return layout;
}

// Data shared by all runs, and a folder for each.
struct Workplace {
    SharedFolder folder;
    StopSignals signals;
    Workplace() {
        in_first_process([this] {
            std::vector<std::uint32_t> ids;
            for (std::uint32_t i = 0; i < 3000; i++) ids.push_back(i * i % vocab);
            write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, ids);
            for (std::uint32_t i = 0; i < 3000; i++) {   // 0 begins a document
                ids[i] = mix64(i) % 5 == 0 ? 0 : 1 + ids[i] % (vocab - 1);
            }
            write_token_file(real_files(), folder / "documents.bin", TokenFormat::gpt2, ids);
        });
    }
};

Options options_of(const Layout& layout, const std::string& output) {
    Options options;
    options.layers = layout.layers, options.heads = 2, options.channels = 32;
    options.seq_len = T, options.micro_batch = layout.accumulates ? 1 : sequences / layout.dp,
    options.total_batch = sequences * T, options.max_steps = 4;
    options.optimizer = layout.optimizer;
    options.lr = layout.optimizer == OptimizerKind::lars ? 20.0f : 1e-3f;
    options.weight_decay = 0.1f;
    options.val_every = 2, options.val_max_batches = 5, options.sample_every = 0;
    options.output_dir = output;
    options.checkpoint_every = 4;
    options.zero = layout.zero;
    options.pp = layout.pp;
    options.pp_schedule = layout.schedule;
    options.pp_chunks = layout.pp_chunks;
    options.recompute = layout.recompute;
    options.master_weights = layout.master_weights;
    options.tp = layout.tp;
    options.sequence_parallel = layout.sequence_parallel;
    options.cp = layout.cp, options.cp_ulysses = layout.ulysses;
    if (layout.llama) {
        options.architecture = {{"norm", static_cast<double>(NormKind::rms)},
                                {"positions", static_cast<double>(PositionKind::rotary)},
                                {"mlp", static_cast<double>(MlpKind::swiglu)},
                                {"mlp-width", 48},
                                {"bias", 0},
                                {"qk-norm", static_cast<double>(QkNorm::head)},
                                {"kv-heads", 1},
                                {"tie-embeddings", 0}};
    }
    options.local = layout.local, options.zero_group = layout.mesh().zero_group;
    options.staleness = layout.staleness, options.grad_compression = layout.compression;
    options.check_replicas = layout.local.every > 0 || layout.compression != GradCompression::none ? 1 : 0;
    if (!layout.clips) options.grad_clip = 0;
    options.document_mask = layout.documents, options.boundary_loss = !layout.documents;
    fit_to_ranks(options, layout.dp);
    return options;
}

// An arena brought to its high-water mark, so that whatever is allocated later raises the mark, were it given back at
// once.
struct FullArena {
    const Arena& arena;
    DeviceBuffer<char> filler;
    std::size_t bytes;
    explicit FullArena(Arena& given)
        : arena(given),
          filler(given.allocate<char>("test/filler", std::max<std::size_t>(given.high_water() - given.bytes(), 1))),
          bytes(given.bytes()) {}
    void require_untouched(const char* by) const {
        ENSURE(arena.bytes() == bytes && arena.high_water() == bytes, by, " took device memory:\n", arena.table());
    }
};

// One rank's model and optimizer.
struct RankOfRun {
    Options options;
    World* world;   // null: one process alone
    TrainingGroups groups;
    Arena& arena;
    std::unique_ptr<CutPoints> cut_points;
    std::unique_ptr<ExpertRanks> expert_ranks;
    Stage model;
    std::optional<Step> step;

    RankOfRun(const Options& given, World* its_world, const RankLayout& place, Arena& its_arena, cudaStream_t stream)
        : options(given),
          world(its_world),
          groups(groups_of(its_world, given)),
          arena(its_arena),
          cut_points(its_world ? make_cut_points(*its_world, stage_options(given, place, nullptr), arena, stream)
                               : nullptr),
          expert_ranks(its_world
                           ? make_expert_ranks(*its_world, stage_options(given, place, nullptr), model_config(given))
                           : nullptr),
          model(model_config(given), stage_options(given, place, cut_points.get(), expert_ranks.get()), arena, stream) {
        initialize_parameters(model.parameters(), options.seed, model.stream());
        model.attention().use(model.attention().kind());   // a library allocates now, as at a run's start
        OptimizerOptions how;
        how.optimizer = options.optimizer;
        how.lr = options.lr;
        how.weight_decay = options.weight_decay;
        how.ema = 0.9f;
        how.master_weights = options.master_weights;
        how.local = options.local, how.grad_clip = options.grad_clip, how.staleness = options.staleness;
        how.grad_compression = options.grad_compression;
        step.emplace(model, how, arena, groups);
    }

    RunState load(const std::string& checkpoint) {
        return load_training_state(real_files(), checkpoint, tensors_of(*step), model.stream(), options.optimizer);
    }

    using Change = std::function<void(RunState& state, const TokenSet& tokens)>;   // changes the resumed state
    void train(const Workplace& place, const std::string& resume_from, const Change& change = {},
               FileSystem& files = real_files()) {
        const char* const file = options.document_mask ? "documents.bin" : "tokens.bin";
        TokenSet tokens(real_files(), "--train-data", place.folder / file, T, vocab);
        if (options.document_mask) tokens.tell_documents_apart({0, options.boundary_loss});
        const bool writes = world == nullptr || world->is_first();
        RunState state;
        if (!resume_from.empty()) state = load(resume_from);
        const Log log(false);
        Metrics metrics(real_files(), writes ? options.output_dir : "", state.step);
        Trainer trainer({options, log, arena, *step, tokens, &tokens, files, metrics, place.signals, nullptr, nullptr,
                         "", options.max_steps, 0.0, groups, world});
        if (change) change(state, tokens);
        if (!resume_from.empty()) trainer.restore(state);
        const FullArena full(arena);
        trainer.run();
        // right after the last update, when others' parameters may still be on their way
        if (beyond_llmc(model.config()).empty()) {
            save_llmc_model(real_files(), options.output_dir + ".llmc", model, trainer.gatherer());
        }
        full.require_untouched("the run after its start");
    }

private:
    // A single rank that is a world has that of all for every group.
    static TrainingGroups groups_of(World* world, const Options& options) {
        if (world == nullptr) return {};
        if (world->ranks() == 1) return {world->all(), world->all(), world->all()};
        return training_groups(*world, model_config(options), options.pp_chunks, options.local.every > 0);
    }
    static ModelConfig model_config(const Options& o) {
        ModelConfig config = custom_model_config(o.layers, 2, 32, T, o.vocab_size > 0 ? o.vocab_size : vocab);
        apply(o.architecture, config);
        return config;
    }
    static StageOptions stage_options(const Options& o, const RankLayout& place, CutPoints* cut_points = nullptr,
                                      ExpertRanks* expert_ranks = nullptr) {
        StageOptions result;
        result.sequence_parallel = o.sequence_parallel && place.mesh.tp > 1;
        result.B = o.micro_batch;
        result.T = o.seq_len;
        result.matmul.workspace_bytes = 1 << 16;
        result.place = place;
        if (o.local.every > 0) {
            const Replica own = replica_of(place.mesh, place.at);
            result.place.mesh = own.mesh, result.place.at = own.at;
            result.replica = own.number, result.replicas = own.replicas;
        }
        result.recompute = o.recompute.value_or(Recompute::gelu);
        result.documents = o.document_mask;
        add_pipeline(result, o, model_config(o));
        result.ulysses = o.ulysses();
        result.cut_points = cut_points;
        result.expert_ranks = expert_ranks;
        return result;
    }
};

// `work` on every rank of a layout; alone, without communicators, for dp 0. All files are written when this returns.
// False where it was passed over (on_ranks_testing.h).
bool on_layout(const Layout& layout, const Options& options, const std::function<void(RankOfRun&)>& work) {
    if (layout.dp == 0) {
        in_first_process([&] {
            Arena arena;
            OwnedStream stream;
            RankOfRun alone(options, nullptr, RankLayout{}, arena, stream.get());
            work(alone);
        });
        return true;
    }
    INFO(layout.name());
    const bool ran = on_ranks(layout.mesh(), [&](TestRank& me) {
        const RankLayout here{me.world.mesh(), me.world.at(), layout.zero, layout.optimizer == OptimizerKind::muon};
        RankOfRun rank(options, &me.world, here, me.arena, me.stream);
        work(rank);
    });
    if (ran) from_first_process("");   // processes that sat it out read the files too
    return ran;
}

// Files of a checkpoint by name, without what is of the layout: the matmuls' algorithms, and the manifest that hashes
// them too.
std::map<std::string, std::string> files_of(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
        const std::string name = entry.path().filename().string();
        if (name == kMatmulChoicesFile || name == "manifest.json") continue;
        files[name] = read_whole(real_files(), entry.path().string());
    }
    return files;
}

std::vector<double> losses_in(const std::string& metrics) {
    std::vector<double> losses;
    const std::regex pattern("loss\":([0-9.e+-]+)");
    for (std::sregex_iterator match(metrics.begin(), metrics.end(), pattern), end; match != end; ++match) {
        losses.push_back(std::stod((*match)[1]));
    }
    return losses;
}

// Losses of every layout against those of one process; and each cut after two steps and resumed against itself.
void compare_runs(std::vector<Layout> layouts, OptimizerKind optimizer = OptimizerKind::adamw) {
    const Workplace place;
    // the metrics it leaves; nothing where it was passed over
    auto run = [&](const Layout& layout, const std::string& name, int stop_after,
                   const std::string& resume_from) -> std::optional<std::string> {
        Layout asked = layout;
        asked.dp = std::max(layout.dp, 1);
        Options options = options_of(asked, place.folder / name);
        options.stop_after = stop_after;
        if (!on_layout(layout, options, [&](RankOfRun& rank) { rank.train(place, resume_from); })) return std::nullopt;
        return read_whole(real_files(), options.output_dir + "/metrics.jsonl");
    };
    Layout alone{0, 0};
    alone.optimizer = optimizer;
    alone.documents = layouts[0].documents, alone.llama = layouts[0].llama, alone.clips = layouts[0].clips;
    alone.staleness = layouts[0].staleness;
    const std::vector<double> expected = losses_in(run(alone, "alone", 0, "").value());
    CHECK(expected.size() == 4 + 3);   // steps; validations at 0, 2, 4

    for (Layout& layout : layouts) {
        layout.optimizer = optimizer;
        INFO(layout.name());
        const std::string whole = "whole, " + layout.name(), cut = "cut, " + layout.name();
        const std::optional<std::string> uncut = run(layout, whole, 0, "");
        if (!uncut) continue;
        const std::vector<double> losses = losses_in(*uncut);
        REQUIRE(losses.size() == expected.size());
        const bool is_near = layout.master_weights && layout.local.every <= 1;
        const double tolerance = layout.compression == GradCompression::none ? loss_tolerance : 2e-3;
        for (std::size_t i = 0; is_near && i < losses.size(); i++) {
            CHECK(std::abs(losses[i] / expected[i] - 1) < tolerance);
        }
        run(layout, cut, 2, "");
        const std::string resumed = run(layout, cut, 0, place.folder / cut + "/" + checkpoint_name(2)).value();
        CHECK(without_times(resumed) == without_times(*uncut));
        const std::string last = "/" + checkpoint_name(4);
        CHECK(files_of(place.folder / cut + last) == files_of(place.folder / whole + last));
        if (layout.llama) continue;   // no llm.c file holds one
        CHECK(read_whole(real_files(), place.folder / cut + ".llmc") ==
              read_whole(real_files(), place.folder / whole + ".llmc"));
    }
}

}   // namespace

TEST_CASE("layouts: losses and validation are those of one process, cut and resumed to the bit") {
    compare_runs({{1, 3}, {2, 0}, {2, 1}, {3, 2}, {3, 3, false}, {4, 3}, {2, 1, true, false}, {3, 3, true, false}});
}

TEST_CASE(
    "layouts: losses and validation under tensor parallelism are those of one process, cut and resumed to the bit") {
    compare_runs({{1, 0, true, false, 2}, {2, 3, true, false, 2}, {2, 1, false, false, 2, false}});
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

// The bits of the heads that a rank and others hold copies of, in the exact weights.
std::string copied_heads(RankOfRun& rank) {
    std::string bits;
    const ModelState<float>& weights = rank.step->optimizer().state("outer_weights");
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
    const Workplace place;
    for (const Layout& layout : layouts) {
        for (const bool wrong : {false, true}) {
            Options options = options_of(layout, place.folder / text(layout.name(), ", wrong ", wrong));
            options.val_every = 0, options.max_steps = 2;
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
                const std::vector<std::string> heads = rank.world->gather_text(copied_heads(rank));
                ENSURE(heads[0].empty() != layout.llama, "which heads have copies");
                for (const std::string& of_one : heads) ENSURE(of_one == heads[0], "copies of heads differ");
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

TEST_CASE("layouts: with gradients that are applied a step late, likewise") {
    std::vector<Layout> layouts{{1, 0},
                                {2, 0},
                                {2, 1},
                                {3, 1, false},
                                {2, 1, true, false, 2},
                                pipeline(2, 1, 2),
                                context(2, 1, true, 2, 1),
                                all_axes(2, 2, 1, 2, 0)};
    for (Layout& layout : layouts) layout.staleness = 1;
    compare_runs(layouts);
    compare_runs({layouts[2], layouts[7]}, OptimizerKind::muon);
    compare_runs({layouts[2]}, OptimizerKind::lamb);
}

TEST_CASE("layouts: with compressed gradients, likewise, near those of one process") {
    std::vector<Layout> layouts{{2, 0},
                                {2, 1},
                                {3, 1, false},
                                {2, 1, true, false, 2},
                                pipeline(2, 1, 2),
                                context(1, 0, true, 2, 1),
                                all_axes(2, 2, 1, 2, 0)};
    for (const GradCompression how : {GradCompression::int8, GradCompression::bf16_}) {
        for (Layout& layout : layouts) layout.compression = how;
        compare_runs(layouts);
    }
    Layout llama = all_axes(2, 1, 1, 2, 1);   // whose tp ranks have copies of heads
    llama.llama = true, llama.compression = GradCompression::int8;
    compare_runs({llama});
    compare_runs({layouts[0]}, OptimizerKind::lamb);
}

// Copies must come to the same bits by themselves: nothing is shared inside a replica after such a move.
TEST_CASE("layouts: local steps whose moves travel in 8 bits, likewise") {
    std::vector<Layout> layouts = replicas_with({.every = 3, .compression = OuterCompression::int8});
    for (Layout& layout : layouts) layout.clips = true;
    compare_runs(
        {layouts[1] /* copies at stage 0 */, layouts[3], layouts[4], layouts[5] /* tp */, layouts[6] /* tied ends */});
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

// A step over the whole file, and the validation before it: both are means over the positions that have a loss, which
// an untrained model finds as likely as any other.
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

TEST_CASE("layouts: pipelines and all axes together answer questions as one process does") {
    std::vector<Question> questions;
    for (int q = 0; q < 13; q++) {
        auto ids = [&](int first, int count) {
            std::vector<std::int32_t> tokens;
            for (int t = 0; t < count; t++) tokens.push_back((q * 17 + first + t * t) % vocab);
            return tokens;
        };
        questions.push_back({q % 3, ids(1, 4), {ids(5, 3), ids(29, 5), ids(40, 2)}});
    }
    const StopSignals signals;
    auto right = [&](RankOfRun& rank) {
        Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
        return Evaluation(*rank.step, questions).run(agreement).value().right;
    };
    int expected = 0;
    const Options options = options_of({}, "");
    on_layout({0, 0}, options, [&](RankOfRun& rank) { expected = right(rank); });
    expected = std::stoi(from_first_process(std::to_string(expected)));
    CHECK(expected > 0);
    CHECK(expected < 13);
    for (const Layout& layout :
         {pipeline(1, 0, 2), pipeline(2, 3, 2), all_axes(2, 1, 2, 2, 3), all_axes(2, 2, 2, 1, 1)}) {
        on_layout(layout, options_of(layout, ""), [&](RankOfRun& rank) {
            const int found = right(rank);
            ENSURE(found == expected, found, " right, one process has ", expected);
        });
    }
}

namespace {

// Invented questions of every kind, with what a double-precision model answers. The last words of every second text of
// LAMBADA's kind are what that model goes on with.
struct Invented {
    const NamedSource* source;
    std::vector<Question> questions;
    EvaluationResult expected;
    int rules_differ = 0;   // questions that the two rules of multiple choice answer differently
};

std::vector<double> reference_losses(const ReferenceGpt& reference, const Question& question, std::size_t completion,
                                     std::vector<int>* likeliest = nullptr) {
    std::vector<std::int32_t> tokens(T), targets(T);
    completion_row(question, completion, tokens, targets);
    const ReferenceResult result = reference.forward(tokens, targets, 1, T);
    std::vector<double> losses;
    for (std::size_t t = 0; t < T; t++) {
        if (targets[t] < 0) continue;
        losses.push_back(result.losses[t]);
        const auto row = result.logits.begin() + static_cast<std::ptrdiff_t>(t * vocab);
        if (likeliest) likeliest->push_back(static_cast<int>(std::max_element(row, row + vocab) - row));
    }
    return losses;
}

Invented invented_choices(const ReferenceGpt& reference, const NamedSource& source, int completions) {
    Invented made{&source, {}, {}};
    for (int q = 0; q < 11; q++) {
        auto ids = [&](int first, int count) {
            std::vector<std::int32_t> tokens;
            for (int t = 0; t < count; t++) tokens.push_back((q * 17 + first * completions + t * t) % vocab);
            return tokens;
        };
        Question question{q % completions, ids(1, 3 + q % 4), {}};
        std::vector<double> relative, sums;
        for (int c = 0; c < completions; c++) {
            question.completions.push_back(ids(5 + 11 * c, 1 + (q + c) % 5));
            const std::vector<double> losses = reference_losses(reference, question, static_cast<std::size_t>(c));
            sums.push_back(std::accumulate(losses.begin(), losses.end(), 0.0));
            double length = static_cast<double>(losses.size());
            if (completions != 3) {   // the others say characters
                const auto tokens = static_cast<std::int32_t>(losses.size());
                question.characters.push_back(1 + 3 * tokens * tokens + (q + c) % 3);   // long answers of long words
                length = question.characters.back();
            }
            relative.push_back(sums.back() / length);
        }
        const auto answer = [](const std::vector<double>& values) {
            return std::min_element(values.begin(), values.end()) - values.begin();
        };
        made.expected.right += answer(relative) == question.label;
        made.expected.right_by_sum += answer(sums) == question.label;
        made.rules_differ += answer(relative) != answer(sums);
        made.questions.push_back(question);
    }
    return made;
}

Invented invented_texts(const ReferenceGpt& reference) {
    Invented made{&question_sources[5], {}, {}};
    double loss = 0;
    for (int q = 0; q < 11; q++) {
        Question question{0, {}, {{1, 2}}};
        for (int t = 0; t < 2 + q; t++) question.context.push_back((q * 7 + t * t) % vocab);
        for (std::size_t word = 0; word < 2; word++) {   // the second one after the first
            std::vector<int> likeliest;
            reference_losses(reference, question, 0, &likeliest);
            question.completions[0][word] = likeliest[word];
        }
        if (q % 2 == 1) question.completions[0][static_cast<std::size_t>(q / 2 % 2)] += 1;   // one of them is another
        for (std::int32_t& id : question.completions[0]) id %= vocab;
        for (double l : reference_losses(reference, question, 0)) loss += l;
        made.expected.right += q % 2 == 0;
        made.questions.push_back(question);
    }
    made.expected.perplexity = std::exp(loss / 11);
    return made;
}

}   // namespace

TEST_CASE("layouts: every evaluation is that of a double-precision model, on invented questions") {
    constexpr double parity = sizeof(floatX) == 4 ? 1e-5 : 2e-2;
    const auto reference_of = [](RankOfRun& rank) {
        ReferenceGpt reference(rank.model.config());
        for (int i = 0; i < reference.table.size(); i++) {
            const std::vector<float> values = download_tensor(rank.model.parameters(), i, rank.model.stream());
            std::copy_n(values.begin(), reference.parameters[static_cast<std::size_t>(i)].size(),
                        reference.parameters[static_cast<std::size_t>(i)].begin());
        }
        return reference;
    };
    const auto invented_by = [](const ReferenceGpt& reference) {
        return std::vector<Invented>{
            invented_choices(reference, question_sources[0], 3), invented_choices(reference, question_sources[1], 4),
            invented_choices(reference, question_sources[2], 5), invented_choices(reference, question_sources[3], 5),
            invented_choices(reference, question_sources[4], 2), invented_texts(reference)};
    };
    std::vector<Invented> invented;
    const StopSignals signals;
    auto compare = [&](RankOfRun& rank) {
        for (const Invented& set : invented) {
            Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
            Evaluation evaluation(*rank.step, set.questions, *set.source, &rank.arena);
            const EvaluationResult found = evaluation.run(agreement).value();
            // in bf16 two completions, or two tokens, may be as likely
            const int apart = std::max(std::abs(found.right - set.expected.right),
                                       std::abs(found.right_by_sum - set.expected.right_by_sum));
            ENSURE(apart <= (sizeof(floatX) == 4 ? 0 : 2), evaluation.in_words(found), ", expected ",
                   evaluation.in_words(set.expected));
            if (!set.expected.perplexity) continue;
            ENSURE(std::abs(*found.perplexity / *set.expected.perplexity - 1) < parity, evaluation.in_words(found),
                   ", expected perplexity ", *set.expected.perplexity);
        }
    };
    {   // in every process, which all need what is expected
        Arena arena;
        OwnedStream stream;
        RankOfRun alone(options_of({}, ""), nullptr, RankLayout{}, arena, stream.get());
        invented = invented_by(reference_of(alone));
        for (const Invented& set : invented) {
            CHECK((set.expected.right > 0 && set.expected.right < 11));
            CHECK((set.expected.perplexity || set.rules_differ > 0));
        }
        compare(alone);
    }
    Layout not_sequence_parallel = all_axes(2, 1, 1, 2, 1);
    not_sequence_parallel.sequence_parallel = false;
    for (const Layout& layout :
         {Layout{3, 2}, Layout{2, 3}, pipeline(2, 1, 2), context(2, 3, true, 2, 1), context(1, 0, true, 2, 2),
          not_sequence_parallel, all_axes(2, 2, 2, 1, 1), all_axes(2, 1, 2, 2, 3)}) {
        on_layout(layout, options_of(layout, ""), compare);
    }
}

TEST_CASE("layouts: questions of 128,256 ids are answered under tp, pp and cp as one process does") {
    const Tokenizer tokenizer = wide_tokenizer(64);
    std::vector<QuestionText> texts;
    for (int q = 0; q < 7; q++) {
        auto words = [&](int first, int count) {
            std::string made;
            for (int t = 0; t < count; t++) made += text("<", (q * 17 + first + t * t) % 64, ">");
            return made;
        };
        texts.push_back({words(1, 4), {words(5, 3), words(29, 5), words(40, 2)}, static_cast<std::size_t>(q % 3)});
    }
    const std::vector<Question> questions =
        parse_question_file(to_question_file(tokenizer, texts), "wide", wide_vocab_size, tokenizer.hash());
    CHECK(questions[1].completions[0][0] > 65535);
    const StopSignals signals;
    const auto wide_options = [](const Layout& layout) {
        Options options = options_of(layout, "");
        options.vocab_size = wide_vocab_size, options.layers = 2;
        return options;
    };
    const auto right = [&](RankOfRun& rank) {
        Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
        return Evaluation(*rank.step, questions).run(agreement).value().right;
    };
    int expected = 0;
    on_layout({0, 0}, wide_options({}), [&](RankOfRun& rank) { expected = right(rank); });
    expected = std::stoi(from_first_process(std::to_string(expected)));
    CHECK((expected > 0 && expected < 7));
    for (const Layout& layout :
         {all_axes(2, 1, 1, 1, 0), pipeline(1, 0, 2), context(1, 0, true, 2, 1), all_axes(2, 2, 2, 1, 1)}) {
        on_layout(layout, wide_options(layout), [&](RankOfRun& rank) {
            const int found = right(rank);
            const int apart = std::abs(found - expected);   // in bf16 two completions may be as likely
            ENSURE(apart <= (sizeof(floatX) == 4 ? 0 : 1), found, " right, one process has ", expected);
        });
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
            layouts.push_back({dp, zero, false});
            layouts.push_back({dp, zero, true, false});
        }
    }
    compare_runs(layouts);
}

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
                                 Layout{1, 0, true, true, 2},
                                 Layout{3, 2, true, true, 2, false},
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
