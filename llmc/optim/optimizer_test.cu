// Every rule against a plain reference in double with the same gradients, and every layout against one process.
#include "llmc/kernels/optim/rules.cuh"
#include "llmc/model/weights.h"
#include "llmc/optim/optimizer_testing.h"
#include "llmc/optim/tensor_blocks.h"
#include "llmc/run/options/option_names.h"

using namespace certificate;

namespace {

// One tensor of the reference.
struct ReferenceTensor {
    Doubles w, m, v, average;
};

// As the papers have it (rules.cuh), with one gradient.
void update_reference(ReferenceTensor& x, const ParamInfo& info, const Doubles& g, const OptimizerOptions& o, double lr,
                      int t) {
    const double b1 = static_cast<double>(o.beta1), b2 = static_cast<double>(o.beta2);
    const double decay = info.decays ? static_cast<double>(o.weight_decay) : 0;
    for (const auto& [begin, end] : blocks(info.tensor)) {
        Doubles change(x.w.size());
        for (std::size_t i = begin; i < end; i++) {
            if (o.optimizer == OptimizerKind::sgd) {
                change[i] = (x.m[i] = b1 * x.m[i] + g[i]) + decay * x.w[i];
            } else if (o.optimizer != OptimizerKind::lars) {
                x.m[i] = b1 * x.m[i] + (1 - b1) * g[i];
                x.v[i] = b2 * x.v[i] + (1 - b2) * g[i] * g[i];
                change[i] = x.m[i] / (1 - std::pow(b1, t)) /
                                (std::sqrt(x.v[i] / (1 - std::pow(b2, t))) + static_cast<double>(o.eps)) +
                            decay * x.w[i];
            }
        }
        const double w = norm_of(x.w, begin, end), gradient = norm_of(g, begin, end), by = norm_of(change, begin, end);
        const bool adapts = info.decays && w > 0;
        const double lars = adapts && gradient > 0 ? static_cast<double>(o.lars_trust) * w / (gradient + decay * w) : 1;
        const double lamb = adapts && by > 0 && o.optimizer == OptimizerKind::lamb ? w / by : 1;
        for (std::size_t i = begin; i < end; i++) {
            if (o.optimizer == OptimizerKind::lars) {
                x.w[i] -= (x.m[i] = b1 * x.m[i] + lr * lars * (g[i] + decay * x.w[i]));
            } else {
                x.w[i] -= lr * lamb * change[i];
            }
        }
    }
}

}   // namespace

TEST_CASE("optimizer: 50 steps of every rule are those of a double loop with the same gradients") {
    for (const auto& rule : EnumNames<OptimizerKind>::list) {
        const OptimizerKind kind = rule.value;
        if (kind == OptimizerKind::muon) continue;   // below
        INFO(rule.name);
        Rank rank(Layout{});
        Stage& stage = rank.stage();
        OptimizerOptions options;
        options.optimizer = kind;
        options.weight_decay = 0.1f;
        options.ema = 0.8f;   // from step 35 on; before, less
        const auto optimizer = std::make_unique<Optimizer>(stage, options, rank.arena());
        std::vector<ReferenceTensor> expected;
        for (int param = 0; param < stage.table().size(); param++) {
            const Doubles w = doubles(download_tensor(stage.parameters(), param, rank.stream()));
            expected.push_back({w, Doubles(w.size()), Doubles(w.size()), w});
        }
        for (int step = 1; step <= 50; step++) {
            for (int param = 0; param < stage.table().size(); param++) {
                const ParamInfo& info = stage.table()[param];
                ReferenceTensor& tensor = expected[static_cast<std::size_t>(param)];
                std::vector<float> g =
                    drawn(tensor.w.size(), info.random_tensor() + static_cast<std::uint64_t>(step) * 1000003);
                std::fill(g.begin() + info.exported_elements(), g.end(), 0.0f);   // rows that pad the vocabulary
                upload_tensor(stage.gradients().kept().as<float>(), param, g, rank.stream());
                update_reference(tensor, info, doubles(g), options, static_cast<double>(rate_of(kind)), step);
                const double kept = std::min(0.8, (1.0 + step) / (10.0 + step));
                for (std::size_t i = 0; i < tensor.w.size(); i++) {
                    tensor.average[i] = kept * tensor.average[i] + (1 - kept) * tensor.w[i];
                }
            }
            optimizer->update(step, rate_of(kind), nullptr);
        }
        for (int param = 0; param < stage.table().size(); param++) {
            const bool has_master = optimizer->states().front().is_weights;
            const Doubles found = doubles(has_master ? download_tensor(optimizer->state("master"), param, rank.stream())
                                                     : download_tensor(stage.parameters(), param, rank.stream()));
            const Doubles average = doubles(download_tensor(optimizer->state("ema"), param, rank.stream()));
            const ReferenceTensor& tensor = expected[static_cast<std::size_t>(param)];
            INFO(stage.table()[param].name);
            CHECK(distance(found, tensor.w) <= 1e-6 * norm_of(tensor.w, 0, tensor.w.size()));
            CHECK(distance(average, tensor.average) <= 1e-6 * norm_of(tensor.w, 0, tensor.w.size()));
        }
    }
}

TEST_CASE("optimizer: every layout makes of a rule what one process does; ZeRO 0 and 1, 2 and 3 to the bit") {
    for (const OptimizerKind kind :
         {OptimizerKind::muon, OptimizerKind::lamb, OptimizerKind::lars, OptimizerKind::sgd}) {
        Layout alone{1, 0, 4};
        alone.optimizer = kind, alone.lr = rate_of(kind);
        const Result expected = Rank(alone).train(5);
        CHECK(expected.losses.back() < expected.losses[1]);
        auto with = [&](int dp, int zero, int tp, int pp, int cp) {
            Layout layout = alone;
            layout.dp = dp, layout.zero = zero, layout.tp = tp, layout.cp = cp, layout.pipe.stages = pp;
            layout.sequence_parallel = tp > 1;
            certify(layout, expected);
        };
        if (kind == OptimizerKind::muon) {   // with heads that two ranks can share
            Layout even = alone;
            even.heads = 4;
            const Result of_even = Rank(even).train(5);
            even.dp = 2, even.zero = 1, even.tp = 2, even.sequence_parallel = true, even.micro_batches = 2;
            certify(even, of_even);
        }
        const bool muon = kind == OptimizerKind::muon;   // the others share four layouts out
        if (muon || kind == OptimizerKind::lamb) {
            Layout groups = alone;
            groups.dp = 4, groups.zero = 1, groups.zero_group = 2, groups.micro_batches = 1;
            certify(groups, expected);
        }
        if (muon || kind == OptimizerKind::lamb) with(1, 0, 3, 1, 1);
        if (muon || kind == OptimizerKind::lamb) with(2, 1, 1, 2, 1);
        if (muon || kind == OptimizerKind::lars) with(3, 2, 1, 1, 1);
        if (muon || kind == OptimizerKind::sgd) with(1, 3, 1, 1, 2);
        if (!muon && kind != OptimizerKind::lars) continue;
        std::vector<Result> results(4);
        for (int zero = 0; zero < 4; zero++) {
            Layout layout = alone;
            layout.dp = 2, layout.zero = zero, layout.micro_batches = 1;
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                const Result found = rank.train(5);
                require_same_everywhere(found, me);
                if (me.rank() == 0) results[static_cast<std::size_t>(zero)] = found;
            });
        }
        CHECK(results[0] == results[1]);
        CHECK(results[2] == results[3]);
    }
}

TEST_CASE("optimizer: Muon and LAMB of a Llama are one process's on every axis; ZeRO 0 and 1, 2 and 3 to the bit") {
    // Norms of heads, and of rows; in bf16 the gradient of OLMo 2's k_norm (32 elements) is off by 2.7% with tp 2, by
    // rounding: fp32's bound of 5e-6 holds.
    std::vector<ModelKind> kinds{ModelKind::llama};
    if (std::is_same_v<floatX, float>) kinds.push_back(ModelKind::olmo2);
    for (const ModelKind kind : kinds) {
        for (const OptimizerKind rule : {OptimizerKind::muon, OptimizerKind::lamb}) {
            Layout alone{1, 0, 4};
            alone.kind = kind, alone.heads = 4, alone.kv_heads = 2, alone.optimizer = rule, alone.lr = rate_of(rule);
            const Result expected = Rank(alone).train(5);
            CHECK(expected.losses.back() < expected.losses[1]);
            auto with = [&](int dp, int zero, int tp, int pp, int cp) {
                Layout layout = alone;
                layout.dp = dp, layout.zero = zero, layout.tp = tp, layout.cp = cp, layout.pipe.stages = pp;
                layout.sequence_parallel = tp > 1, layout.micro_batches = 4 / dp;
                certify(layout, expected);
            };
            with(2, 1, 2, 1, 1);
            with(1, 0, 4, 1, 1);   // pairs of ranks hold copies of a KV head
            with(2, 2, 1, 2, 1);
            with(1, 3, 1, 1, 2);
            std::vector<Result> results(4);
            for (int zero = 0; zero < 4; zero++) {
                Layout layout = alone;
                layout.dp = 2, layout.zero = zero, layout.micro_batches = 1;
                on_layout(layout, [&](Rank& rank, TestRank& me) {
                    const Result found = rank.train(5);
                    require_same_everywhere(found, me);
                    if (me.rank() == 0) results[static_cast<std::size_t>(zero)] = found;
                });
            }
            CHECK(results[0] == results[1]);
            CHECK(results[2] == results[3]);
        }
    }
}

#if defined(PRECISION_FP32)   // bf16 rounds it away: the two halves of a tensor are much alike
TEST_CASE("optimizer: a norm over this rank's shard alone is found out") {
    for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::lamb, OptimizerKind::lars}) {
        Layout layout{2, kind == OptimizerKind::muon ? 2 : 1};   // under 1 its matrices are whole
        layout.optimizer = kind, layout.lr = rate_of(kind);
        Layout alone = layout;
        alone.dp = 1, alone.zero = 0;
        const Result expected = Rank(alone).train(5);
        const ParamTable table(model(layout));
        const std::size_t norms = 2 * static_cast<std::size_t>(first_blocks(table).back());
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            me.all.set_tap([&](const CommCall& call, const Communicator::Make& make) {
                const bool of_norms = call.type == ncclFloat64 && call.count == norms;
                if (!of_norms) make(call);   // else each keeps its own
            });
            const Result found = rank.train(5);
            me.all.set_tap({});
            me.require(!difference(found, expected, table).empty(), "the certificate does not see it");
        });
    }
}
#endif

TEST_CASE("optimizer: ranges are cut where blocks begin") {
    const TensorSpec tensor{.rows = 12, .cols = 5, .cut = TensorCut::column_parallel, .blocks = {6, 4, 2}};
    const std::vector<BlockRange> parts = by_blocks(tensor, {{{10}, 3, 45}});
    REQUIRE(parts.size() == 3);
    const std::int64_t expected[3][3] = {{10, 3, 20}, {30, 23, 20}, {50, 43, 5}};
    for (int i = 0; i < 3; i++) {
        const BlockRange& part = parts[static_cast<std::size_t>(i)];
        CHECK(part.block == i);
        CHECK(part.global.first == expected[i][0]);
        CHECK(part.local_begin == expected[i][1]);
        CHECK(part.length == expected[i][2]);
    }
    const TensorSpec columns{.rows = 4, .cols = 6, .cut = TensorCut::row_parallel};
    const std::vector<OwnedRange> cut = tp_shard_ranges(columns, 2, 1);
    CHECK(by_blocks(columns, cut).front() == cut.front());
    CHECK(first_blocks(ParamTable(model())).back() > ParamTable(model()).size());
}
