// The certificate of mixtures of experts, with both losses of the router: every rank has all experts, or they are dealt
// out.
#include "dev/test/certificate/expert_layouts_testing.h"

using namespace certificate;

TEST_CASE("certificate: mixtures of experts, a sample of layouts") {
    certify_all(experts(1, 0, 1), in_bf16,
                {experts(2, 0, 4), experts(3, 1, 1), experts(2, 2, 4, Recompute::block),
                 experts(2, 3, 1, Recompute::gelu_norm), over(experts(1, 0, 2), 3, true, 1, 2),
                 over(experts(1, 0, 1, Recompute::block), 3, false), over(experts(2, 1, 1), 1, false, 2),
                 over(experts(1, 2, 2), 3, true, 2), in_stages(experts(1, 0, 4), 3, PipelineKind::one_f_one_b),
                 in_stages(experts(2, 2, 4, Recompute::block), 3, PipelineKind::zero_bubble)});
}

TEST_CASE("certificate: mixtures of experts: every recompute level gives the same bits, so does a pipeline's") {
    Layout layout = experts(1, 0, 4, Recompute::none);
    layout.tied = false;
    const Result expected = Rank(layout).train(2);
    for (const Recompute level : {Recompute::gelu, Recompute::gelu_norm, Recompute::block}) {
        layout.recompute = level;
        CHECK(Rank(layout).train(2) == expected);
        for (const PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble}) {
            on_layout(in_stages(layout, 3, kind),
                      [&](Rank& rank, TestRank& me) { me.require(rank.train(2).losses == expected.losses, "losses"); });
        }
    }
}

// ep is tp, cp, dp, or some of their ranks; experts have one holder, or several that ZeRO cuts over.
TEST_CASE("certificate: experts dealt out to ranks, a sample of layouts") {
    certify_all(dealt(1, experts(1, 0, 1)), in_bf16,
                {dealt(2, experts(4, 0, 2, Recompute::block)), dealt(4, experts(4, 1, 2)),
                 dealt(4, experts(4, 2, 2, Recompute::block)), dealt(2, experts(4, 3, 2, Recompute::gelu_norm)),
                 dealt(4, over(experts(2, 1, 1, Recompute::block), 2, true)),
                 dealt(2, over(experts(1, 2, 2), 4, true, 1, 2)), dealt(4, over(experts(2, 2, 2), 1, false, 2)),
                 dealt(2, in_stages(experts(2, 2, 4, Recompute::block), 3, PipelineKind::zero_bubble))});
}

namespace {

Layout four_layers(Layout layout) {   // as many as two stages of two chunks need
    layout.layers = 4;
    return layout;
}
Layout small(Layout layout) {
    layout.step_sequences = 16;
    return layout;
}

}   // namespace

TEST_CASE("certificate: mixtures of experts in the other pipelines") {
    certify_all(small(experts(1, 0, 1)), in_bf16, {small(in_stages(experts(1, 0, 4), 3, PipelineKind::gpipe))});
    certify_all(small(dealt(1, experts(1, 0, 1))), in_bf16,
                {small(dealt(2, in_stages(experts(2, 1, 2, Recompute::block), 2, PipelineKind::gpipe)))});
    const Layout interleaved = in_stages(experts(2, 1, 4, Recompute::block), 2, PipelineKind::interleaved, 2);
    certify_all(four_layers(small(dealt(1, experts(1, 0, 1)))), in_bf16, {four_layers(small(dealt(2, interleaved)))});
}

// Within a stage, experts are dealt out to the ranks that share matrices, or sequences.
TEST_CASE("certificate: experts dealt out to ranks of tp or cp in a pipeline") {
    const PipelineKind kind = PipelineKind::one_f_one_b;
    certify_all(small(dealt(1, experts(1, 0, 1))), in_bf16,
                {small(dealt(2, in_stages(over(experts(1, 0, 2, Recompute::block), 2, true), 2, kind))),
                 small(dealt(2, in_stages(over(experts(1, 1, 2), 1, false, 2), 2, kind)))});
}

TEST_CASE("certificate: all layouts of experts dealt out to ranks" * doctest::skip()) {
    using enum PipelineKind;
    for (const int ep : {2, 4}) {
        for (const int zero : {0, 1, 2, 3}) {
            for (const Recompute level : {Recompute::none, Recompute::block}) {
                INFO("ep ", ep, ", zero ", zero, ", ", static_cast<int>(level));
                certify_all(
                    dealt(1, experts(1, 0, 1)), in_bf16,
                    {dealt(ep, experts(4, zero, 2, level)), dealt(ep, over(experts(2, zero, 2, level), 2, true)),
                     dealt(ep, over(experts(2, zero, 1, level), 1, false, 2)),
                     dealt(ep, over(experts(2, zero, 1, level), 2, true, 2, 2))});
            }
            for (const PipelineKind kind : {one_f_one_b, zero_bubble, gpipe}) {
                certify_all(dealt(1, experts(1, 0, 1)), in_bf16,
                            {dealt(ep, in_stages(over(experts(2, zero, 2), 2, true), 2, kind)),
                             dealt(ep, in_stages(over(experts(2, zero, 2), 1, false, 2), 2, kind))});
                if (ep == 4) continue;   // as many as a stage has
                certify_all(dealt(1, experts(1, 0, 1)), in_bf16, {dealt(ep, in_stages(experts(2, zero, 4), 3, kind))});
            }
            certify_all(four_layers(dealt(1, experts(1, 0, 1))), in_bf16,
                        {four_layers(dealt(ep, in_stages(experts(4, zero, 4), 2, interleaved, 2)))});
        }
    }
}

// Equal logits would leave no gap; biases that differ by 0.25 do, where the K-th and the next expert have other ones.
TEST_CASE("certificate: the gap of a sigmoid router's choices is that of its scores with biases") {
    Layout layout = with_sigmoid(dealt(1, experts(1, 0, 1)));
    layout.step_sequences = 4;
    for (const bool two_levels : {true, false}) {
        layout.choices = std::make_shared<Choices>();
        Rank rank(layout);
        std::vector<float> bias(static_cast<std::size_t>(layout.layers * layout.experts), 0.0f);
        for (std::size_t i = 0; i < bias.size(); i++) bias[i] = i % 8 == 1 || i % 8 == 6 || (!two_levels && i % 8 == 3);
        for (float& b : bias) b *= 0.25f;
        rank.stage().router_bias().set(bias);
        for (int layer = 0; layer < layout.layers; layer++) {
            const int param = rank.stage().table().index("mlp.router.weight", layer);
            upload_tensor<floatX>(rank.stage().parameters(), param, std::vector<float>(8 * 64, 0.0f), rank.stream());
        }
        rank.gradients(1);
        CHECK(layout.choices->smallest_gap == (two_levels ? 0.25f : 0.0f));
    }
}

TEST_CASE("certificate: replayed choices of experts are one process's, whatever the layout") {
    // equal bits with its own choices, and other bits with another run's
    const Layout layout = dealt(1, experts(1, 0, 2));
    Layout replayed = layout;
    replayed.choices = std::make_shared<Choices>();
    const Result expected = Rank(layout).train(2);
    CHECK(Rank(replayed).train(2) == expected);   // it records
    CHECK(Rank(replayed).train(2) == expected);
    for (auto& [_, all] : *replayed.choices) std::ranges::reverse(all);   // now those of other tokens
    for (auto& [_, all] : *replayed.choices) {                            // ascending again
        for (std::size_t i = 0; i < all.size(); i += 2) std::swap(all[i], all[i + 1]);
    }
    CHECK(Rank(replayed).train(2).losses[0] != expected.losses[0]);
    certify_all(dealt(1, experts(1, 0, 1)), true,
                {dealt(2, over(experts(2, 2, 2), 2, true, 1, 2)), dealt(4, over(experts(2, 1, 1), 1, false, 2))});
}

TEST_CASE("certificate: experts dealt out to ranks give forward's bits of ranks that have all of them") {
    for (const Layout& layout : {dealt(1, experts(4, 1, 1)), dealt(1, over(experts(1, 0, 2), 4, true))}) {
        float first = 0;
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const float loss = rank.train(1).losses[0];
            if (me.rank() == 0) first = loss;
        });
        for (const int ep : {2, 4}) {
            on_layout(dealt(ep, layout), [&](Rank& rank, TestRank& me) {
                const float loss = rank.train(1).losses[0];
                me.require(loss == first, "loss ", loss, " instead of ", first);
            });
        }
    }
}

// Four experts of a rank in 1, 2, 3 (so not of equal size) and 4 chunks.
TEST_CASE("certificate: chunks of experts' exchanges change no bit") {
    for (Layout layout : {dealt(2, experts(2, 2, 2)), dealt(2, over(experts(2, 1, 1, Recompute::block), 2, true)),
                          dealt(2, in_stages(experts(2, 0, 2), 3, PipelineKind::zero_bubble))}) {
        layout.step_sequences = 16;
        std::optional<Result> expected;
        for (const int chunks : {1, 2, 3, 4, 9}) {
            layout.ep_chunks = chunks;
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                const int found = rank.expert_ranks()->chunks();
                me.require(found == std::min(chunks, 4), found, " chunks of ", chunks);
                const Result result = rank.train(2);
                if (me.rank() != 0) return;
                if (!expected) expected = result;
                me.require(result == *expected, "another result with ", chunks, " chunks");
            });
        }
    }
}

TEST_CASE("certificate: tokens of each expert and the router's losses are one process's, whatever the layout") {
    Layout reference = dealt(1, experts(1, 0, 1));
    reference.choices = std::make_shared<Choices>();
    Rank one(reference);
    one.gradients(1);
    const ExpertLoad expected = *one.step().result().experts;
    std::vector<std::int32_t> counts;
    for (int layer = 0; layer < reference.layers; layer++) {
        std::vector<std::int32_t> of_layer(static_cast<std::size_t>(reference.experts), 0);
        for (const std::int32_t e : reference.choices->at({1, layer})) of_layer[static_cast<std::size_t>(e)]++;
        counts.insert(counts.end(), of_layer.begin(), of_layer.end());
    }
    CHECK(one.stage().expert_totals().counts.download(one.stream()) == counts);
    CHECK(expected.balance_loss > 0.1 * reference.layers);   // an even load gives 0.1 in each layer
    CHECK(expected.z_loss > 0);
    for (Layout layout :
         {dealt(4, experts(4, 1, 2, Recompute::block)), dealt(1, over(experts(1, 0, 1, Recompute::block), 2, false)),
          dealt(2, over(experts(2, 2, 2), 2, true, 1, 2)), dealt(1, over(experts(1, 1, 2), 1, false, 2)),
          dealt(1, in_stages(experts(1, 0, 4), 3, PipelineKind::zero_bubble))}) {
        layout.choices = reference.choices;
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            rank.gradients(1);
            const ExpertLoad found = *rank.step().result().experts;
            me.require(rank.stage().expert_totals().counts.download(rank.stream()) == counts,
                       "other tokens of experts");
            auto near = [](double a, double b) { return std::abs(a - b) <= (in_bf16 ? 2e-2 : 1e-5) * b; };
            me.require(near(found.balance_loss, expected.balance_loss), "balance loss ", found.balance_loss);
            me.require(near(found.z_loss, expected.z_loss), "z-loss ", found.z_loss);
        });
    }
}

// The rows that each rank's experts got, by the choices that one process recorded. Ranks differ along dp alone.
TEST_CASE(
    "certificate: rows of the fullest rank, relative to the mean, are those that the choices give, layer by layer") {
    Layout reference = dealt(1, experts(1, 0, 1));
    reference.choices = std::make_shared<Choices>();
    Rank(reference).gradients(1);
    const auto K = static_cast<std::size_t>(reference.experts_per_token);
    for (Layout layout :
         {dealt(2, experts(2, 0, 2, Recompute::block)), dealt(4, experts(4, 1, 1)), dealt(2, experts(4, 1, 2))}) {
        layout.choices = reference.choices;
        std::vector<double> expected;
        for (int layer = 0; layer < layout.layers; layer++) {
            const std::vector<std::int32_t>& chosen = reference.choices->at({1, layer});
            std::vector<double> rows(static_cast<std::size_t>(layout.dp), 0.0);
            const int B = sequences / layout.dp / layout.micro_batches, held = layout.experts / layout.ep;
            for (std::size_t i = 0; i < chosen.size(); i++) {
                const int sequence = static_cast<int>(i / K) / T, from = sequence / B % layout.dp;
                rows[static_cast<std::size_t>(from / layout.ep * layout.ep + chosen[i] / held)]++;
            }
            expected.push_back(*std::ranges::max_element(rows) / (static_cast<double>(chosen.size()) / layout.dp));
        }
        CHECK(*std::ranges::max_element(expected) > 1.02);
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            for (int time = 0; time < 2; time++) {   // a step forgets the one before
                rank.gradients(1);
                const std::vector<double> found = rank.step().result().experts->fullest_rank;
                me.require(found == expected, "the fullest rank of layer 0 has ", found.at(0), ", not ", expected[0]);
            }
        });
    }
    Layout pipeline = dealt(2, in_stages(experts(2, 0, 2), 3, PipelineKind::one_f_one_b));
    on_layout(pipeline, [&](Rank& rank, TestRank& me) {   // every rank knows all layers'
        rank.gradients(1);
        const std::vector<double> found = rank.step().result().experts->fullest_rank;
        me.require(found.size() == 3 && std::ranges::min_element(found)[0] >= 1, "layers of other stages");
    });
}

// Biases of a sigmoid router follow from whole numbers: they are one process's to the bit, on every rank.
TEST_CASE("certificate: sigmoid routers with biases, a sample of layouts") {
    Layout reference = with_sigmoid(dealt(1, experts(1, 0, 1)));
    reference.choices = std::make_shared<Choices>();
    Rank one(reference);
    const Result expected = one.train(4);
    if (!in_bf16)
        MESSAGE("choices are free; the smallest gap of scores with biases is ", reference.choices->smallest_gap);
    const std::vector<float> bias = one.stage().router_bias().values();
    CHECK(std::ranges::count_if(bias, [](float b) { return b != 0; }) > 12);   // more than half of 24
    const ParamTable table(model(reference));
    for (Layout layout : {dealt(4, experts(4, 1, 2, Recompute::block)), dealt(2, over(experts(2, 3, 2), 2, true)),
                          dealt(1, over(experts(1, 0, 1), 2, false)),
                          dealt(2, in_stages(experts(2, 2, 4, Recompute::block), 3, PipelineKind::zero_bubble))}) {
        layout = with_sigmoid(layout);
        if (in_bf16) layout.choices = reference.choices;
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const Result found = rank.train(4);
            require_same_everywhere(found, me);
            const std::string story = difference(found, expected, table);
            me.require(story.empty(), story);
            me.require(rank.stage().router_bias().values() == bias, "other biases of routers");
        });
    }
}

TEST_CASE("certificate: what experts dealt out to ranks send equals the formulas") {
    for (const Recompute recompute : {Recompute::gelu, Recompute::block}) {
        for (const int ep : {2, 4}) {
            Layout layout = choosing_all(dealt(ep, experts(4, 0, 2, recompute)));
            const bool capped = ep == 4 && recompute == Recompute::gelu;
            layout.capacity_factor = capped ? 1.0f : 0.0f;   // room for all
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                Communicator& group = *expert_group(me.world);
                rank.train(1);
                group.reset_traffic();
                rank.groups().all->reset_traffic();
                rank.gradients(2);
                const int ranks = me.world.ranks();   // loss, votes, norm; tokens of experts; losses; fullest; dropped
                const double numbers = 2.0 * (ranks - 1) / ranks *
                                       (8 * step_sums + 4.0 * layout.layers * layout.experts + 2 * 8 +
                                        (capped ? 2 : 1) * 4.0 * layout.layers);
                me.require(rank.groups().all->traffic().all_reduce == numbers, "numbers of ", numbers, " bytes");
                const double sent = group.traffic().point_to_point, counts = group.traffic().all_gather;
                const Stage& stage = rank.stage();
                const double R = stage.sizes().residual_rows(), K = layout.experts_per_token, C = stage.sizes().C,
                             f = (ep - 1.0) / ep, layers = layout.layers, times = layers * layout.micro_batches;
                const double ways = recompute == Recompute::block ? 5 : 4;
                const double formula = times * (ways * R * K * C * sizeof(floatX) + 2 * 4 * R * K) * f;
                me.require(sent == formula, "sends ", sent, " bytes instead of ", formula);
                me.require(counts == times * 4 * (ep - 1) * layout.experts, "counts of ", counts, " bytes");
            });
        }
    }
}

// The damage is the same on all ranks.
TEST_CASE("certificate: sums of experts' gradients over their holders, dropped or made twice, make it fail") {
    Layout layout = dealt(2, experts(4, 0, 1));
    if (in_bf16) layout.choices = std::make_shared<Choices>();
    const Result expected = alone(layout, 1, 2);
    const ParamTable table(model(layout));
    for (const bool twice : {false, true}) {
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            int hits = 0;
            rank.groups().holders->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                hits++;
                for (int i = 0; i < (twice ? 2 : 0); i++) make(call);   // a sum of equal sums: a factor of 2
            });
            const std::string story = difference(rank.train(2), expected, table);
            me.require(hits > 0 && story.find("experts.c_fc") != std::string::npos &&
                           (in_bf16 || story.find("norm") != std::string::npos),   // there it may be far off
                       "it passes: ", story);
        });
    }
}
