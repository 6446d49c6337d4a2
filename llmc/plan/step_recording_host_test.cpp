// The graph of a step that is not run, against what the stand-in records of one that is: the same operations, bytes and
// FLOPs on every recorded rank, and a replay that takes as long. And the memory that is counted for a rank against what
// it allocates.
#include "llmc/plan/step_recording.h"

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/model/field_values_testing.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/step_time.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/run_parts.h"

namespace {

struct PlannedLayout {
    const char* name;
    int pp = 1, dp = 1, cp = 1, tp = 1, zero = 0, micro_batches = 1;
    PipelineKind schedule = PipelineKind::one_f_one_b;
    Recompute recompute = Recompute::none;
    MlpKind mlp = MlpKind::gelu;
    bool documents = false;
    int experts = 0;
};

PlannedRun run_of(const PlannedLayout& layout, const std::function<void(Options&)>& change = {}) {
    Options o;
    o.layers = 4, o.heads = 4, o.channels = 64, o.vocab_size = 97;
    o.micro_batch = 2, o.seq_len = 32;
    o.pp = layout.pp, o.dp = layout.dp, o.cp = layout.cp, o.tp = layout.tp, o.zero = layout.zero;
    o.pipeline.kind = layout.schedule, o.recompute = layout.recompute;
    o.total_batch = std::int64_t{layout.micro_batches} * o.micro_batch * o.seq_len * layout.dp;
    if (layout.mlp == MlpKind::swiglu) o.architecture = {{"mlp", 1}, {"norm", 1}, {"positions", 1}, {"bias", 0}};
    o.document_mask = layout.documents;
    if (layout.experts > 0) {
        o.architecture.insert({{"experts", layout.experts}, {"experts-per-token", 2}, {"shared-experts", 1}});
    }
    if (change) change(o);
    return planned_run(o);
}

struct Recorded {
    virtual_clock::Recording steps;
    std::size_t bytes = 0;
};

// Records every rank's operations in two steps that really run.
std::vector<Recorded> really_recorded(const PlannedRun& run) {
    std::vector<Recorded> ranks(static_cast<std::size_t>(run.mesh.size()));
    on_ranks(run.mesh, [&](TestRank& me) {
        Arena arena;
        World alone;   // a run of one rank has no communicators
        World& world = run.mesh.size() == 1 ? alone : me.world;
        RunParts parts(run.options, run.config, world, arena, me.stream);
        initialize_parameters(parts.stage.parameters(), 1, parts.stage.stream());
        Step& step = parts.make_step(run.options, arena);
        const PipelineSchedule schedule = run.options.pp > 1 ? schedule_of_stage(run.options, me.world.at().pp)
                                                             : one_stage_schedule(run.options.micro_steps());
        auto read = [](int, const MicroBatch& to) {
            std::ranges::fill(to.tokens, 0);
            std::ranges::fill(to.targets, 0);
        };
        CUDA_CHECK(cudaDeviceSynchronize());
        Recorded& own = ranks[static_cast<std::size_t>(me.rank())];
        own.steps = host::record([&] {
            for (int i = 1; i <= 2; i++) {
                step.gradients(schedule, read, 1.0f);
                step.update(i, 1e-3f);
                step.result();
            }
        });
        CUDA_CHECK(cudaDeviceSynchronize());
        own.bytes = arena.high_water();
    });
    return ranks;
}

void require_same(const virtual_clock::Recording& planned, const virtual_clock::Recording& found) {
    REQUIRE(planned.size() == found.size());
    for (std::size_t i = 0; i < planned.size(); i++) {
        const virtual_clock::RecordedStep &a = planned[i], &b = found[i];
        INFO("operation ", i, ": ", a.name, " planned, ", b.name, " recorded");
        REQUIRE(a.kind == b.kind);
        REQUIRE(a.name == b.name);
        REQUIRE(a.work.flops == b.work.flops);
        REQUIRE(a.work.bytes == b.work.bytes);
        REQUIRE(a.work.exchanges.size() == b.work.exchanges.size());
        for (std::size_t e = 0; e < a.work.exchanges.size(); e++) {
            REQUIRE(a.work.exchanges[e].sends == b.work.exchanges[e].sends);
            REQUIRE(a.work.exchanges[e].receives == b.work.exchanges[e].receives);
        }
    }
}

// Requires that the counted memory of every rank is right to the byte.
void require_counted(const PlannedRun& run, const std::vector<Recorded>& found) {
    for (int rank = 0; rank < run.mesh.size(); rank++) {
        World world(run.mesh, rank, run.options.comm_sms);
        const Arena counted = counted_run(run.options, run.config, world);
        CHECK(counted.high_water() == found[static_cast<std::size_t>(rank)].bytes);
    }
}

// One on which computing, and links, and latency all matter for these sizes.
Machine small_machine() {
    Machine machine;
    machine.matmul = {{0, 1e11}};
    machine.attention_per_second = 5e10, machine.copy_bytes_per_second = 1e11, machine.kernel_seconds = 1e-6;
    machine.intra = machine.inter = {2e10, 1e-6};
    return machine;
}

}   // namespace

TEST_CASE("plan: the graph of a step that is not run is what the stand-in records, and its memory what is allocated") {
    for (const PlannedLayout& layout : {
             PlannedLayout{.name = "one rank", .micro_batches = 2},
             PlannedLayout{.name = "Llama's kind", .micro_batches = 2, .mlp = MlpKind::swiglu},
             PlannedLayout{.name = "experts", .micro_batches = 2, .experts = 4},
             PlannedLayout{
                 .name = "experts, tp, dp", .dp = 2, .tp = 2, .zero = 2, .mlp = MlpKind::swiglu, .experts = 4},
             PlannedLayout{.name = "zero 0", .dp = 2, .micro_batches = 2},
             PlannedLayout{.name = "zero 1, block", .dp = 2, .zero = 1, .recompute = Recompute::block},
             PlannedLayout{.name = "zero 3", .dp = 2, .zero = 3, .micro_batches = 2},
             PlannedLayout{.name = "tp", .tp = 2},
             PlannedLayout{.name = "cp", .cp = 2},
             PlannedLayout{.name = "pp", .pp = 2, .micro_batches = 4},
             PlannedLayout{.name = "documents", .pp = 3, .cp = 2, .micro_batches = 4, .documents = true},
             PlannedLayout{.name = "zb, tp, dp",
             .pp = 2,
             .dp = 2,
             .tp = 2,
             .zero = 2,
             .micro_batches = 4,
             .schedule = PipelineKind::zero_bubble},
         }) {
        const std::string name = layout.name;
        CAPTURE(name);
        const PlannedRun run = run_of(layout);
        const StepRecording planned = record_steps(run.options, run.config, run.mesh, run.mesh.size(),
                                                   {run.options.micro_steps(), run.options.micro_steps()});
        const std::vector<Recorded> found = really_recorded(run);
        if (!ranks_are_threads()) return;
        std::vector<virtual_clock::Recording> all;
        for (const Recorded& rank : found) all.push_back(rank.steps);
        for (int stage = 0; stage < run.mesh.pp; stage++) {
            const auto rank = static_cast<std::size_t>(rank_of(run.mesh, {.pp = stage, .cp = run.mesh.cp - 1}));
            require_same(planned.stages[static_cast<std::size_t>(stage)], found[rank].steps);
        }
        require_counted(run, found);
        const virtual_clock::CostModel costs = costs_of(small_machine(), planned.groups);
        const double replayed = virtual_clock::replay(planned.stages, costs).seconds,
                     recorded = virtual_clock::replay(all, costs).seconds;
        CHECK(std::abs(replayed / recorded - 1) < 0.01);
    }
}

namespace {

// Random layouts of all axes and kinds of models: of every rank by the byte.
void count_random_layouts(int layouts, unsigned seed) {
    if (!ranks_are_threads()) return;
    std::mt19937 random(seed);
    auto any = [&](auto... values) {
        const std::array list{values...};
        return list[random() % list.size()];
    };
    for (int counted = 0; counted < layouts;) {
        PlannedLayout layout{
            .name = "random", .pp = any(1, 1, 2, 4), .dp = any(1, 2, 3), .cp = any(1, 1, 2), .tp = any(1, 1, 2, 4)};
        layout.zero = any(0, 1, 2, 3), layout.micro_batches = any(1, 2, 4);
        layout.schedule = any(PipelineKind::one_f_one_b, PipelineKind::gpipe, PipelineKind::zero_bubble);
        layout.recompute = any(Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block);
        layout.mlp = any(MlpKind::gelu, MlpKind::swiglu);
        if (layout.pp * layout.dp * layout.cp * layout.tp > 8) continue;
        auto change = [&](Options& o) {
            if (any(0, 0, 1)) o.architecture["kv-heads"] = any(1, 2);
            o.architecture["tie-embeddings"] = any(0, 1);
            o.sequence_parallel = any(false, true);
            o.grad_dtype = any(DType::fp32, dtype_of<floatX>);
            o.master_weights = any(MasterWeights::none, MasterWeights::fp32, MasterWeights::compact);
            o.moments = any(DType::fp32, DType::bf16), o.ema = any(0.0f, 0.9f);
            o.optimizer = any(OptimizerKind::adamw, OptimizerKind::adamw, OptimizerKind::muon);
            if (any(0, 0, 1)) {   // dealt out to some ranks of a stage, or not
                o.architecture["experts"] = 4, o.architecture["experts-per-token"] = any(1, 2);
                o.ep = any(1, 2, 4);
            }
            if (o.ep == 1 && layout.dp * layout.cp % 2 == 0 && any(0, 1) && layout.zero > 0) o.zero_group = 2;
            if (o.pp == 2 && layout.micro_batches % 2 == 0 && any(0, 1)) {
                o.pipeline.kind = PipelineKind::interleaved, o.pipeline.chunks = 2;
            }
            if (o.cp == 2 && o.architecture["kv-heads"] != 1 && o.tp == 1 && any(0, 1)) {
                o.cp_mode = ContextMode::ulysses;
            }
        };
        std::optional<PlannedRun> run;
        try {
            run = run_of(layout, change);
        } catch (const Error& error) {   // the options refuse this combination
            REQUIRE(error.kind() == ErrorKind::usage);
            continue;
        }
        CAPTURE(counted);
        require_counted(*run, really_recorded(*run));
        counted++;
    }
}

}   // namespace

TEST_CASE("plan: the memory that is counted is what ranks allocate, 20 random layouts") { count_random_layouts(20, 5); }
TEST_CASE("plan: the memory that is counted is what ranks allocate, 500 random layouts" * doctest::skip()) {
    count_random_layouts(500, 7);
}

TEST_CASE("plan: the memory that is counted is what ranks allocate, with every value of every field of a model") {
    if (!ranks_are_threads()) return;
    for (const ModelField& field : model_fields()) {
        if (field.basic) continue;   // sizes; the layouts above differ in them
        for (const PlannedLayout& layout : {PlannedLayout{.name = "data", .dp = 2, .zero = 2},
                                            PlannedLayout{.name = "tensor", .tp = 2, .mlp = MlpKind::swiglu}}) {
            const ModelConfig plain = plain_for(field, run_of(layout).config);
            for (const double value : values_to_try(field, plain)) {
                ModelConfig wanted = plain;
                field.set(wanted, value);
                if (wanted.rope_scaling != RopeScaling::none && wanted.rope_factor == 1) wanted.rope_factor = 8;
                const ModelConfig usual = run_of(layout).config;
                INFO(std::string(layout.name), ", ", std::string(field.name), " ", field.value_of(wanted));
                const PlannedRun run = run_of(layout, [&](Options& o) {
                    o.layers = 2;
                    for (const ModelField& other : model_fields()) {
                        if (!other.basic && !other.same(wanted, usual)) o.architecture[other.name] = other.get(wanted);
                    }
                    o.architecture[field.name] = value;
                });
                CHECK(field.get(run.config) == value);
                require_counted(run, really_recorded(run));
            }
        }
    }
}

TEST_CASE("plan: Muon's update of 124M parameters is 120 launches more for 72 matrices, with the FLOPs of each") {
    auto recorded = [](OptimizerKind rule) {
        Options o;
        o.model = "gpt2:124M", o.seq_len = 64, o.micro_batch = 1, o.optimizer = rule;
        PlannedRun run = planned_run(o);
        run.options.recompute = Recompute::none;
        const StepRecording found = record_steps(run.options, run.config, run.mesh, 1, {1, 1});
        const StepRecording::End first = found.ends[0][0], second = found.ends[0][1];
        double flops = 0;
        int multiplied = 0, polynomials = 0;
        for (std::size_t i = first.recorded; i < second.recorded; i++) {
            const virtual_clock::RecordedStep& step = found.stages[0][i];
            if (step.kind != virtual_clock::RecordedStep::Kind::operation) continue;
            if (step.name.starts_with("cublasLtMatmul")) multiplied++, flops += step.work.flops;
            if (step.name.starts_with("polynomial_kernel")) polynomials++;
        }
        return std::tuple(multiplied, polynomials, flops);
    };
    const auto [multiplied, polynomials, flops] = recorded(OptimizerKind::muon);
    const auto [multiplied_adamw, none, flops_adamw] = recorded(OptimizerKind::adamw);
    constexpr int batches = 2 + 2 + 2;   // of 48 matrices of C x C, 12 of 4 C x C, 12 of C x 4 C
    CHECK(multiplied - multiplied_adamw == 5 * 3 * batches);
    CHECK(polynomials == 5 * batches);
    CHECK(none == 0);
    const double cube = 768.0 * 768 * 768;
    CHECK(flops - flops_adamw == doctest::Approx(5 * 2 * cube * (48 * 3 + 24 * 9)));
}

TEST_CASE("plan: norms of heads, with rotary positions, are one launch forward and two backward of a layer") {
    struct Operations {
        int all = 0;
        std::map<std::string, int> of_kernel;
    };
    auto recorded = [](QkNorm norm) {
        const PlannedRun run = run_of({.name = "Qwen3's kind", .mlp = MlpKind::swiglu}, [&](Options& o) {
            o.architecture["qk-norm"] = static_cast<double>(norm), o.architecture["kv-heads"] = 2;
        });
        const StepRecording found = record_steps(run.options, run.config, run.mesh, 1, {1, 1});
        Operations operations;
        for (std::size_t i = found.ends[0][0].recorded; i < found.ends[0][1].recorded; i++) {
            const virtual_clock::RecordedStep& step = found.stages[0][i];
            if (step.kind != virtual_clock::RecordedStep::Kind::operation) continue;
            operations.all++, operations.of_kernel[step.name.substr(0, step.name.find('<'))]++;
        }
        return operations;
    };
    Operations none = recorded(QkNorm::none), head = recorded(QkNorm::head);
    constexpr int layers = 4;
    CHECK(none.of_kernel["rotary_kernel"] == 2 * layers);
    CHECK(head.of_kernel["rotary_kernel"] == 0);
    CHECK(head.of_kernel["copy_heads_kernel"] == 0);
    CHECK(head.of_kernel["head_norms_forward_kernel"] == layers);
    CHECK(head.of_kernel["head_norms_backward_kernel"] == layers);
    const char* const finish = "layernorm_backward_finish_kernel";
    CHECK(head.of_kernel[finish] == none.of_kernel[finish] + layers);
    CHECK(head.all == none.all + layers);   // three instead of two rotations
}
