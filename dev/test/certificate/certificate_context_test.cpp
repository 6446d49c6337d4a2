// The certificate under context parallelism (certificate_testing.h): rings, Ulysses and both, with data parallelism and
// every ZeRO stage.
#include <chrono>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/run/choices/attention_of_run.h"

using namespace certificate;

namespace {

Layout layout_of(int cp, int ulysses, int dp, int zero, int micro_batches = 1, int seq_len = 48, int heads = 3) {
    Layout layout{dp, zero, micro_batches};
    layout.cp = cp, layout.ulysses = ulysses;
    layout.seq_len = seq_len, layout.heads = heads;
    return layout;
}

// Layouts of one model and sequence length against one process.
void certify(const std::vector<Layout>& layouts, int steps) {
    Layout alone;
    alone.seq_len = layouts[0].seq_len, alone.heads = layouts[0].heads;
    const Result expected = Rank(alone).train(steps);
    for (const Layout& layout : layouts) {
        REQUIRE((layout.seq_len == alone.seq_len && layout.heads == alone.heads));
        certificate::certify(layout, expected);
    }
}

}   // namespace

TEST_CASE("certificate: a sample of rings, Ulysses and both x ZeRO x micro-batches") {
    certify({layout_of(2, 1, 1, 0), layout_of(3, 1, 1, 2, 2), layout_of(4, 1, 2, 1), layout_of(3, 3, 2, 3)}, 3);
    Layout recomputing = layout_of(4, 2, 1, 3, 2, 16, 4);
    recomputing.recompute = Recompute::block;
    certify({layout_of(2, 2, 1, 1, 2, 16, 4), recomputing, layout_of(8, 1, 1, 3, 1, 16, 4),
             layout_of(8, 4, 1, 2, 1, 16, 4)},
            3);
    certify({layout_of(2, 1, 2, 2, 1, 4, 4), layout_of(2, 2, 1, 0, 1, 4, 4)}, 2);   // the shortest sequences
}

namespace {

// Every mode of this many ranks, with dp 2 where that is at most 8, every ZeRO stage, short and long sequences.
void certify_all(int cp) {
    for (int seq_len : {2 * cp, 48, 256 / (2 * cp) * (2 * cp)}) {   // the last: 252 over 3
        std::vector<Layout> layouts;
        for (int ulysses : {1, 2, 4, cp}) {
            if (cp % ulysses != 0 || (ulysses > 1 && ulysses < cp && cp < 4) || (ulysses == 4 && cp == 4)) continue;
            for (int dp : {1, 2}) {
                if (cp * dp > 8) continue;
                for (int zero : {0, 1, 2, 3}) layouts.push_back(layout_of(cp, ulysses, dp, zero, 1, seq_len, 24));
            }
        }
        certify(layouts, seq_len == 48 ? 20 : 4);
    }
}

}   // namespace

TEST_CASE("shared sequences: all modes, ZeRO 0-3, cp 2" * doctest::skip()) { certify_all(2); }
TEST_CASE("shared sequences: all modes, ZeRO 0-3, cp 3" * doctest::skip()) { certify_all(3); }
TEST_CASE("shared sequences: all modes, ZeRO 0-3, cp 4" * doctest::skip()) { certify_all(4); }
TEST_CASE("shared sequences: all modes, ZeRO 0-3, cp 8" * doctest::skip()) { certify_all(8); }

TEST_CASE("shared sequences: where there is a ring its hop and its attention are measured, which changes no run") {
    Layout alone;
    alone.seq_len = 48, alone.heads = 4;
    const Result expected = Rank(alone).train(2);
    for (const auto& [ranks, of_ulysses] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {2, 1}, {4, 2}}) {
        const int cp = ranks, ulysses = of_ulysses;
        const Layout layout = layout_of(cp, ulysses, 1, 0, 1, 48, 4);
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const std::optional<RingTimes> times = rank.stage().attention().time_ring();
            me.require(times.has_value() == (cp > ulysses), "measured");
            me.require(!times || (times->hop_s > 0 && times->block_s > 0), "in no time");
            const std::string doubt = warning_about_ring(rank.stage(), me.world);
            me.require(doubt.empty() || (times && doubt.find("--seq-len") != std::string::npos), doubt);
            const std::string story = difference(rank.train(2), expected, ParamTable(model(layout)));
            me.require(story.empty(), story);
        });
    }
}

namespace {

// Device memory that depends on the length of sequences.
double sequence_bytes(const Arena& arena) {
    double bytes = 0;
    for (const Allocation& allocation : arena.allocations()) {
        if (allocation.name.starts_with("workspace/matmul")) continue;   // has a fixed size
        for (const char* group : {"activations/", "workspace/", "batch/", "context/"}) {
            if (allocation.name.starts_with(group)) bytes += static_cast<double>(allocation.bytes);
        }
    }
    return bytes;
}

struct LongRun {
    double seconds = 0, bytes = 0, loss = 0;   // seconds per step; bytes per rank
};

// A step on one sequence of T tokens: 2 layers, 64 channels, one head, a vocabulary of 256, a ring of cp ranks.
LongRun run_step(int cp, int T, bool timed) {
    LongRun result;
    on_ranks(MeshShape{1, 1, cp, 1}, [&](TestRank& me) {
        ModelConfig config = custom_model_config(2, 1, 64, T, 256);
        StageOptions options;
        options.B = 1, options.T = T;
        options.attention = AttentionKind::library;
        options.place = {me.world.mesh(), me.world.at(), 0};
        options.groups = stage_groups(me.world, options.ulysses);
        Stage model(config, options, me.arena, me.stream);
        initialize_parameters(model.parameters(), 1, model.stream());
        TrainingGroups groups = training_groups(me.world);
        if (cp == 1) groups.zero = groups.stage = groups.all;
        Step step(model, {}, me.arena, groups);
        const std::vector<int> positions = token_positions(model.token_ranges());
        auto read = [&](int, const MicroBatch& to) {
            for (std::size_t i = 0; i < to.tokens.size(); i++) {
                to.tokens[i] = static_cast<int>(mix64(static_cast<std::uint64_t>(positions[i])) % 256);
                to.targets[i] = static_cast<int>(mix64(static_cast<std::uint64_t>(positions[i]) + 1) % 256);
            }
        };
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; timed && i < 1; i++) {
            step.gradients(one_stage_schedule(1), read, 1.0f / static_cast<float>(T));
            step.update(1, 1e-3f);
            const double loss = static_cast<double>(step.result().loss);
            CUDA_CHECK(cudaDeviceSynchronize());
            if (me.rank() == 0) result.loss = loss;
        }
        if (me.rank() != 0) return;
        result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        result.bytes = sequence_bytes(me.arena);
    });
    return result;
}

}   // namespace

TEST_CASE("shared sequences: memory that depends on the sequence falls as the number of ranks grows") {
    if (!ranks_are_threads()) return;   // rank 0's findings stay in its process
    const double one = run_step(1, 4096, false).bytes;
    for (int cp : {2, 4, 8}) {
        const double share = run_step(cp, 4096, false).bytes / one;
        MESSAGE("cp ", cp, ": ", share, " of one rank's");
        if (cp == 8 && sizeof(floatX) == 4) CHECK(share < 1.0 / 6);
        CHECK(share < 1.4 / cp);   // a ring's buffers are on top: in bf16 more, because they are fp32
        CHECK(share > 1.0 / cp);
    }
}

TEST_CASE("shared sequences: 65,536 tokens over eight ranks take at most 1.3 times one rank's time" * doctest::skip()) {
    if (!ranks_are_threads()) return;
    const LongRun one = run_step(1, 65536, true), eight = run_step(8, 65536, true);
    MESSAGE("one rank ", one.seconds, " s, eight ", eight.seconds, " s; memory ", eight.bytes / one.bytes, "; losses ",
            one.loss, " ", eight.loss);
    CHECK(eight.seconds < 1.3 * one.seconds);
    CHECK(eight.bytes < one.bytes / 6);
    CHECK(std::abs(eight.loss / one.loss - 1) < tolerance.losses);
}
