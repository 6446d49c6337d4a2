// A stage without backward, as `evaluate` has it: what it takes on the device, and that its losses are those of one
// with.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "llmc/base/stream.h"
#include "llmc/run/step/step.h"

namespace {

struct Losses {
    std::vector<float> losses;
    std::map<std::string, std::size_t> bytes;   // by group
};

Losses losses_of(StageOptions options) {
    const ModelConfig config = custom_model_config(3, 2, 64, 16, 61);
    options.B = 2, options.T = 16;
    options.attention = AttentionKind::own;
    OwnedStream stream;
    Arena arena;
    Stage stage(config, options, arena, stream.get());
    initialize_parameters(stage.parameters(), 42, stage.stream());
    Step step(stage, OptimizerOptions{}, arena);
    auto read = [](int, const MicroBatch& to) {
        for (std::size_t i = 0; i < to.tokens.size(); i++) {
            to.tokens[i] = static_cast<std::int32_t>(i * i % 61);
            to.targets[i] = static_cast<std::int32_t>((i + 7) % 61);
        }
    };
    Losses result;
    for (int i = 0; i < 2; i++) step.forward(read, Purpose::loss);   // again in the same memory
    result.losses.resize(static_cast<std::size_t>(stage.tokens()));
    CUDA_CHECK(cudaMemcpyAsync(result.losses.data(), stage.losses(), result.losses.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, stream.get()));
    CUDA_CHECK(cudaStreamSynchronize(stream.get()));
    for (const Allocation& allocation : arena.allocations()) {
        result.bytes[allocation.name.substr(0, allocation.name.find('/'))] += allocation.bytes;
    }
    result.bytes["(parameters)"] = stage.parameters().bytes();
    const RankSizes& sizes = stage.sizes();
    result.bytes["(a block)"] = static_cast<std::size_t>(activation_set_bytes(sizes, 1, Recompute::none) -
                                                         activation_set_bytes(sizes, 1, Recompute::block));
    result.bytes["(residual streams)"] = static_cast<std::size_t>(activation_set_bytes(sizes, 3, Recompute::block));
    return result;
}

}   // namespace

TEST_CASE("evaluate: a stage without backward has parameters and one micro-batch's activations, no more") {
    StageOptions options;
    options.recompute = Recompute::block;
    Losses with = losses_of(options);
    options.backward = false;
    Losses without = losses_of(options);
    CHECK(with.losses == without.losses);
    CHECK(without.losses[0] > 0);

    CHECK(without.bytes["parameters"] == without.bytes["(parameters)"]);
    CHECK(without.bytes["activations"] == without.bytes["(a block)"] + without.bytes["(residual streams)"]);
    for (const char* group :
         {"gradients", "unsharded gradients", "optimizer m", "optimizer v", "optimizer master", "optimizer tables"}) {
        CHECK_MESSAGE(without.bytes.count(group) == 0, group);
    }
    CHECK(with.bytes.count("optimizer m") == 1);   // so it is looked for by its name
    CHECK(with.bytes.count("gradients") == 1);
    // the other groups do not grow with the model
    for (const auto& group : without.bytes) CHECK_MESSAGE(with.bytes[group.first] >= group.second, group.first);
    const std::size_t small = without.bytes["step"] + without.bytes["batch"];
    CHECK(small < 4096);
}

TEST_CASE("sm90: evaluate: a stage without backward has no workspace for that of attention") {
    if (sizeof(floatX) == 4 || !sm90_attention_refusal().empty()) return;
    const OwnedStream stream;
    for (bool backward : {true, false}) {
        StageOptions options;
        options.B = 2, options.T = 16;
        options.attention = AttentionKind::own_sm90;
        options.backward = backward;
        Arena arena;
        Stage stage(custom_model_config(1, 2, 64, 16, 61), options, arena, stream.get());
        CHECK(stage.attention().kind() == AttentionKind::own_sm90);
        const auto of_attention = [](const Allocation& one) { return one.name == "workspace/attention"; };
        CHECK(std::ranges::count_if(arena.allocations(), of_attention) == (backward ? 1 : 0));
    }
}
