// For tests: the training loop over the ranks of a layout, and runs of layouts against one process's.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <regex>

#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/without_times_testing.h"

namespace layout_runs {

constexpr int vocab = 61, sequences = 24, T = 16;   // a step: what 1, 2, 3, 4, 6 and 8 ranks can share
constexpr double loss_tolerance = sizeof(floatX) == 4 ? 1e-5 : 5e-4;   // docs/numerics.md, "How close"

constexpr MasterWeights masters = MasterWeights::fp32, halves = MasterWeights::compact,
                        no_masters = MasterWeights::none;

struct Layout {
    int dp = 1, zero = 0;
    MasterWeights master_weights = masters;
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
    bool clips = true;            // gradients; a norm of a replica's is another one than that of all
    int experts = 0, ep = 1;      // two for each token
    bool router_biases = false;   // experts are chosen with biases, which follow their load
    DType moments = DType::fp32;
    MeshShape mesh() const { return {pp, dp, cp, tp, replica_ranks == dp * cp ? 0 : replica_ranks, ep}; }
    std::string name() const {
        return text(
            llama ? "Llama, " : "", experts > 0 ? text(experts, " experts on ", ep, " ranks, ") : "",
            name_of(optimizer), ", ", "dp ", dp, ", zero ", zero, moments == DType::fp32 ? "" : ", bf16 moments",
            master_weights == masters ? "" : text(", masters ", name_of(master_weights)),
            accumulates ? "" : ", at once",
            tp > 1 ? text(", tp ", tp, sequence_parallel ? "" : " not sequence-parallel") : "",
            pp > 1 ? text(", pp ", pp, ", ", name_of(schedule)) : "",
            cp > 1 ? text(", cp ", cp, ", ulysses ", ulysses) : "",
            local.every > 0
                ? text(", ", local.every, " local steps of ", replica_ranks, " ranks",
                       local.compression != OuterCompression::none ? text(" in ", name_of(local.compression)) : "",
                       local.fragments > 1 ? text(", ", local.fragments, " fragments") : "",
                       local.has_flights() ? text(", ", local.delay, " steps late, blend ", local.blend) : "")
                : "",
            staleness > 0 ? ", late" : "",
            compression != GradCompression::none ? text(", gradients in ", name_of(compression)) : "", ", recompute ",
            name_of(recompute));
    }
};

inline Layout pipeline(int dp, int zero, int pp, PipelineKind schedule = PipelineKind::one_f_one_b) {
    Layout layout{dp, zero};
    layout.pp = pp, layout.schedule = schedule;
    return layout;
}
inline Layout context(int dp, int zero, bool accumulates, int cp, int ulysses) {
    Layout layout{dp, zero, masters, accumulates};
    layout.cp = cp, layout.ulysses = ulysses;
    return layout;
}
inline Layout all_axes(int tp, int pp, int cp, int dp, int zero, bool accumulates = true,
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

inline Options options_of(const Layout& layout, const std::string& output) {
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
    options.pipeline.kind = layout.schedule;
    options.pipeline.chunks = layout.pp_chunks;
    options.recompute = layout.recompute;
    options.master_weights = layout.master_weights, options.moments = layout.moments;
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
    if (layout.experts > 0) {
        options.architecture["experts"] = layout.experts, options.ep = layout.ep;
        options.architecture["aux-loss"] = 0.1, options.architecture["router-z-loss"] = 0.01;
        if (layout.router_biases) options.architecture["router"] = static_cast<double>(RouterScore::sigmoid);
    }
    options.local = layout.local, options.zero_group = layout.mesh().zero_group;
    options.staleness = layout.staleness, options.grad_compression = {layout.compression, 0.75f};
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
    std::unique_ptr<ExpertRanks> expert_ranks;
    Stage model;
    std::optional<Step> step;

    RankOfRun(const Options& given, World* its_world, const RankLayout& place, Arena& its_arena, cudaStream_t stream)
        : options(given),
          world(its_world),
          groups(groups_of(its_world, given)),
          arena(its_arena),
          expert_ranks(its_world
                           ? make_expert_ranks(*its_world, stage_options(given, place), model_config(given), arena)
                           : nullptr),
          model(model_config(given), stage_options(given, place, its_world, expert_ranks.get()), arena, stream) {
        initialize_parameters(model.parameters(), options.seed, model.stream());
        model.attention().use(model.attention().kind());   // a library allocates now, as at a run's start
        OptimizerOptions how;
        how.optimizer = options.optimizer;
        how.lr = options.lr;
        how.weight_decay = options.weight_decay;
        how.ema = 0.9f;
        how.master_weights = options.master_weights, how.moments = options.moments;
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
        Agreement agreement(arena, groups.everyone(), world, place.signals, model.stream());
        Trainer trainer({options, log, arena, *step, tokens, &tokens, files, metrics, agreement, nullptr, nullptr, "",
                         options.max_steps, 0.0, groups, world});
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
        return training_groups(*world, model_config(options), options.pipeline.chunks, options.local.every > 0);
    }
    static ModelConfig model_config(const Options& o) {
        ModelConfig config = custom_model_config(o.layers, 2, 32, T, o.vocab_size > 0 ? o.vocab_size : vocab);
        apply(o.architecture, config);
        return config;
    }
    static StageOptions stage_options(const Options& o, const RankLayout& place, World* world = nullptr,
                                      ExpertRanks* expert_ranks = nullptr) {
        StageOptions result{o};
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
        add_pipeline(result, o, model_config(o));
        result.ulysses = o.ulysses();
        if (world != nullptr) result.groups = stage_groups(*world, result.ulysses);
        result.expert_ranks = expert_ranks;
        return result;
    }
};

// `work` on every rank of a layout; alone, without communicators, for dp 0. All files are written when this returns.
// False where it was passed over (on_ranks_testing.h).
inline bool on_layout(const Layout& layout, const Options& options, const std::function<void(RankOfRun&)>& work) {
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
inline std::map<std::string, std::string> files_of(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
        const std::string name = entry.path().filename().string();
        if (name == kMatmulChoicesFile || name == "manifest.json") continue;
        files[name] = read_whole(real_files(), entry.path().string());
    }
    return files;
}

inline std::vector<double> losses_in(const std::string& metrics) {
    std::vector<double> losses;
    const std::regex pattern("loss\":([0-9.e+-]+)");
    for (std::sregex_iterator match(metrics.begin(), metrics.end(), pattern), end; match != end; ++match) {
        losses.push_back(std::stod((*match)[1]));
    }
    return losses;
}

// Losses of every layout against those of one process; and each cut after two steps and resumed against itself.
inline void compare_runs(std::vector<Layout> layouts, OptimizerKind optimizer = OptimizerKind::adamw) {
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
    alone.staleness = layouts[0].staleness, alone.experts = layouts[0].experts;
    const std::vector<double> expected = losses_in(run(alone, "alone", 0, "").value());
    // steps, of experts with two losses more; validations at 0, 2, 4
    CHECK(expected.size() == (alone.experts > 0 ? 3 * 4 : 4) + 3);

    for (Layout& layout : layouts) {
        layout.optimizer = optimizer;
        INFO(layout.name());
        const std::string whole = "whole, " + layout.name(), cut = "cut, " + layout.name();
        const std::optional<std::string> uncut = run(layout, whole, 0, "");
        if (!uncut) continue;
        const std::vector<double> losses = losses_in(*uncut);
        REQUIRE(losses.size() == expected.size());
        const bool is_near =
            layout.master_weights != no_masters && layout.moments == DType::fp32 && layout.local.every <= 1;
        const double tolerance = layout.compression == GradCompression::none       ? loss_tolerance
                                 : layout.compression == GradCompression::powersgd ? 3e-2
                                                                                   : 2e-3;
        for (std::size_t i = 0; is_near && i < losses.size(); i++) {
            CHECK(std::abs(losses[i] - expected[i]) <= tolerance * expected[i]);
        }
        run(layout, cut, 2, "");
        const std::string resumed = run(layout, cut, 0, place.folder / cut + "/" + checkpoint_name(2)).value();
        CHECK(without_times(resumed) == without_times(*uncut));
        const std::string last = "/" + checkpoint_name(4);
        CHECK(files_of(place.folder / cut + last) == files_of(place.folder / whole + last));
        if (layout.llama || layout.experts > 0) continue;   // no llm.c file holds one
        CHECK(read_whole(real_files(), place.folder / cut + ".llmc") ==
              read_whole(real_files(), place.folder / whole + ".llmc"));
    }
}

}   // namespace layout_runs
