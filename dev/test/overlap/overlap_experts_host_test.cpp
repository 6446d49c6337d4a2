// How much of the experts' all-to-all is hidden behind work, judged on the stand-in's virtual clock
// (llmc/cuda_on_cpu/clock/record.h) for OLMoE's shape: 2,048 channels, 64 experts of width 1,024, 8 a token, dealt out
// to 8 ranks whose links carry 370 GB/s, 650 TFLOP/s in matmuls, bf16, 16 of 132 multiprocessors for communication.
// What runs is a small model on as many ranks: times of matmuls grow with rows x channels^2, of traffic with rows x
// channels, so costs are scaled to its channels. Loads are equal. Kernels that only move memory cost nothing.
#include "dev/test/overlap/overlap_testing.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr int ranks = 8, C = 64, B = 4, T = 16;

host::CostModel machine() {
    host::CostModel costs;
    const double scale = 2048.0 / C;
    costs.seconds_per_flop = scale * scale / 650e12;
    costs.seconds_per_exchanged_byte = scale / 370e9 * 2 / sizeof(floatX);
    return costs.charged();
}

ModelConfig olmoe(int shared_experts) {
    ModelConfig config = custom_model_config(2, 4, C, T, 97);
    config.mlp = MlpKind::swiglu;
    config.norm = NormKind::rms;
    config.positions = PositionKind::rotary;
    config.bias = Bias::none;
    config.experts = 64;
    config.own_experts_per_token = 8;
    config.own_expert_width = C / 2;
    config.shared_experts = shared_experts;
    return config;
}

// Forward and backward of a step with one micro-batch, as every rank asks for it.
std::vector<host::Recording> record_step(int chunks, int shared_experts) {
    std::vector<host::Recording> recordings(ranks);
    on_ranks(MeshShape{1, ranks, 1, 1, 0, ranks}, [&](TestRank& me) {
        StageOptions options;
        options.B = B;
        options.T = T;
        options.recompute = Recompute::none;
        options.force_balance = true;
        options.ep_chunks = chunks;
        options.place = {me.world.mesh(), me.world.at(), 0};
        options.matmul.workspace_bytes = 1 << 16;
        const ModelConfig config = olmoe(shared_experts);
        const auto expert_ranks = make_expert_ranks(me.world, options, config, me.arena);
        options.expert_ranks = expert_ranks.get();
        Stage model(config, options, me.arena, me.stream);
        initialize_parameters(model.parameters(), 1, model.stream());
        Step step(model, {}, me.arena, training_groups(me.world));
        recordings[static_cast<std::size_t>(me.rank())] = recorded_gradients(model, step);
    });
    return recordings;
}

struct Found {
    int exchanges = 0;
    double busy = 0, hidden = 0;   // seconds of exchanges on rank 0, and of these the ones with computation beside
    double hidden_share() const { return hidden / busy; }
};

Found on_the_clock(const std::vector<host::Recording>& recordings) {
    const host::Timeline timeline = host::replay(recordings, machine());
    std::vector<host::Span> spans;
    for (const host::Span& span : timeline.spans) {
        if (span.rank == 0 && span.end > span.active) spans.push_back(span);
    }
    const auto compute =
        std::ranges::find_if(spans, [](const host::Span& span) { return span.name.starts_with("grouped_product"); });
    REQUIRE(compute != spans.end());
    Found found;
    for (const host::Span& transfer : spans) {
        if (!transfer.name.starts_with("transfer")) continue;
        found.exchanges++;
        found.busy += transfer.end - transfer.active;
        for (const host::Span& work : spans) {
            if (work.stream != compute->stream) continue;
            found.hidden += std::max(0.0, std::min(work.end, transfer.end) - std::max(work.active, transfer.active));
        }
    }
    return found;
}

}   // namespace

TEST_CASE("overlap: most of the experts' all-to-all hides behind other chunks' experts, more behind shared experts") {
    const Found whole = on_the_clock(record_step(1, 0)), two = on_the_clock(record_step(2, 0)),
                four = on_the_clock(record_step(4, 0)), shared = on_the_clock(record_step(4, 2));
    MESSAGE("hidden: ", 100 * whole.hidden_share(), "% in one chunk, ", 100 * two.hidden_share(), "% in two, ",
            100 * four.hidden_share(), "% in four, ", 100 * shared.hidden_share(), "% with two shared experts too; ",
            four.exchanges, " spans");
    CHECK(whole.hidden_share() <= 0.26);   // one of four: gradients come back during a gradient of weights
    CHECK(two.hidden_share() > whole.hidden_share());
    CHECK(four.hidden_share() >= 0.6);
    CHECK(shared.hidden_share() > four.hidden_share());
}
