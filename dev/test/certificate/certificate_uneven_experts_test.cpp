// The certificate of mixtures whose load is as uneven as can be: some experts get all tokens, others none, and so do
// the ranks that hold them.
#include "dev/test/certificate/expert_layouts_testing.h"

using namespace certificate;

namespace {

constexpr int few = 16;   // sequences of a step
Layout few_sequences(Layout layout) {
    layout.step_sequences = few;
    return layout;
}

// Makes the routers of all layers send every token to these experts first: one channel of what a router reads is far
// from zero, and only the favoured experts' rows look at it.
void favour(Rank& rank, const std::vector<int>& favoured) {
    const Stage& stage = rank.stage();
    const auto C = static_cast<std::size_t>(stage.config().channels);
    auto change = [&](const char* name, int layer, const std::function<void(std::vector<float>&)>& edit) {
        const int param = stage.table().index(name, layer);
        if (stage.storage().find(param) == nullptr) return;   // on another pipeline stage
        std::vector<float> values = download_tensor(stage.parameters(), param, rank.stream());
        edit(values);
        upload_tensor<floatX>(stage.parameters(), param, values, rank.stream());
        CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
    };
    for (int layer = 0; layer < static_cast<int>(stage.config().layers); layer++) {
        change("ln_2.bias", layer, [&](std::vector<float>& bias) { bias[0] = 20; });
        change("mlp.router.weight", layer, [&](std::vector<float>& weight) {
            for (const int e : favoured) weight[static_cast<std::size_t>(e) * C] = 3;
        });
    }
}

// Returns the elements of one expert's matrix in a gradient of all experts.
std::span<const float> of_expert(const std::vector<float>& gradient, int e, int experts) {
    const std::size_t one = gradient.size() / static_cast<std::size_t>(experts);
    return std::span(gradient).subspan(static_cast<std::size_t>(e) * one, one);
}

bool is_zero(std::span<const float> values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
}

// Returns the experts without tokens whose gradients are not zero, or those with tokens whose gradients are.
std::string wrong_zeros(const Result& result, const std::vector<std::int32_t>& counts, const ParamTable& table) {
    std::string story;
    const int E = static_cast<int>(table.config().experts);
    for (int layer = 0; layer < static_cast<int>(table.config().layers); layer++) {
        for (const char* name : {"mlp.experts.c_fc.weight", "mlp.experts.c_proj.weight"}) {
            const auto& gradient = result.gradients[static_cast<std::size_t>(table.index(name, layer))];
            for (int e = 0; e < E; e++) {
                const bool idle = counts[static_cast<std::size_t>(layer * E + e)] == 0;
                if (is_zero(of_expert(gradient, e, E)) != idle) story += text(name, " ", layer, " of expert ", e, "\n");
            }
        }
    }
    return story;
}

}   // namespace

TEST_CASE("certificate: all tokens to some experts, none to others, and ranks that get all rows or none") {
    // two experts of one rank, one with others behind it, two of different ranks, the last one
    for (const std::vector<int>& favoured : {std::vector{0, 1}, {3}, {2, 5}, {7}}) {
        Layout reference = few_sequences(dealt(1, experts(1, 0, 1)));
        reference.choices = std::make_shared<Choices>();
        Rank one(reference);
        favour(one, favoured);
        const Result expected = one.train(1);
        const std::vector<std::int32_t> counts = one.stage().expert_totals().counts.download(one.stream());
        for (int layer = 0; layer < reference.layers; layer++) {
            for (const int e : favoured) {
                CHECK(counts[static_cast<std::size_t>(layer * reference.experts + e)] == few * T);
            }
        }
        const auto idle = std::ranges::count(counts, 0);
        CHECK(idle >= (favoured.size() == 2 ? 6 * reference.layers : 1));
        const ParamTable table(model(reference));
        CHECK(wrong_zeros(expected, counts, table) == "");
        const bool one_rank_of_two = favoured == std::vector{0, 1};   // has all rows
        for (Layout layout : {dealt(1, experts(2, 1, 2)), dealt(2, experts(2, 0, 2, Recompute::block)),
                              dealt(4, experts(4, 1, 1)), dealt(2, over(experts(2, 2, 1), 2, true))}) {
            layout = few_sequences(layout);
            layout.ep_chunks = 4;   // of one or two experts: some have no rows
            if (in_bf16) layout.choices = reference.choices;
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                favour(rank, favoured);
                const Result found = rank.train(1);
                require_same_everywhere(found, me);
                const std::string story = difference(found, expected, table);
                me.require(story.empty(), story);
                const std::string zeros = wrong_zeros(found, counts, table);
                const std::vector<double> ranks = rank.step().result().experts->fullest_rank;
                me.require(ranks.empty() == (layout.ep == 1), "rows of the fullest rank without --ep");
                const std::vector<double> all(static_cast<std::size_t>(layout.layers), layout.ep);
                me.require(!one_rank_of_two || layout.ep == 1 || ranks == all, "not all rows on one rank");
                me.require(zeros.empty(), "zero where it should not be, or the other way round: ", zeros);
            });
        }
    }
}

// A router of zeros gives every expert the same probability, and one that looks at one channel gives all to one expert.
TEST_CASE("certificate: a step's balance loss is alpha in each layer of even probabilities, alpha E if one takes all") {
    for (const RouterScore router : {RouterScore::softmax, RouterScore::sigmoid}) {
        for (const int per_token : {1, 2}) {
            for (const bool one_takes_all : {false, true}) {
                Layout layout = few_sequences(dealt(1, experts(1, 0, 2)));
                layout.router = router, layout.experts_per_token = per_token;
                auto balance_loss = [&](Rank& rank) {
                    for (int layer = 0; layer < layout.layers; layer++) {
                        const int param = rank.stage().table().index("mlp.router.weight", layer);
                        upload_tensor<floatX>(rank.stage().parameters(), param,
                                              std::vector<float>(static_cast<std::size_t>(8 * 64), -3 * one_takes_all),
                                              rank.stream());
                        CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
                    }
                    if (one_takes_all) favour(rank, per_token == 1 ? std::vector{6} : std::vector{6, 1});
                    rank.gradients(1);
                    return rank.step().result().experts->balance_loss;
                };
                // of K that take all tokens each has a K-th of the probabilities
                const double alpha = 0.1, expected = alpha * layout.layers * (one_takes_all ? 8.0 / per_token : 1);
                Rank one(layout);
                CHECK(balance_loss(one) == doctest::Approx(expected).epsilon(1e-5));
                layout = dealt(2, over(layout, 2, true));
                on_layout(layout, [&](Rank& rank, TestRank& me) {
                    const double found = balance_loss(rank);
                    me.require(std::abs(found / expected - 1) < 1e-5, "balance loss ", found, " not ", expected);
                });
            }
        }
    }
}
