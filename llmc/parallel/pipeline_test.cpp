// How the layers of a model are dealt out to the stages of a pipeline.
#include "llmc/parallel/pipeline.h"

#include <doctest/doctest.h>

TEST_CASE("pipeline: stages are balanced by what a layer of the model computes") {
    const int T = 1024, C = 1024;
    auto first_stage = [&](const ModelConfig& config) {
        const std::vector<Chunk> chunks = chunks_of_stage(config, {.stages = 2, .micro_batches = 2}, 0, T);
        REQUIRE(chunks.size() == 1);
        return chunks[0].layers.end;
    };
    // 16 layers, an embedding that takes 0.1 of one, and a classifier that takes V / (12 C + T) = 3.8 layers
    ModelConfig config = custom_model_config(16, 16, C, T);
    CHECK(first_stage(config) == 10);
    config.own_mlp_width = C;   // V / (6 C + T) = 7.0
    CHECK(first_stage(config) == 11);
    config.own_kv_heads = 1;   // V / (4.1 C + T) = 9.6
    CHECK(first_stage(config) == 13);
    config.mlp = MlpKind::swiglu;   // V / (5.1 C + T) = 8.0
    CHECK(first_stage(config) == 12);
    config.experts = 8, config.own_experts_per_token = 4;   // four MLPs: V / (14.1 C + T) = 3.3
    CHECK(first_stage(config) == 10);
}

TEST_CASE("pipeline: a layer that slides counts as the cheaper layer it is") {
    const int T = 8192, C = 64;
    ModelConfig config = custom_model_config(8, 1, C, T, 128);
    auto ends = [&] {
        std::vector<std::int64_t> found;
        for (int stage = 0; stage < 2; stage++) {
            found.push_back(chunks_of_stage(config, {.stages = 2, .micro_batches = 2}, stage, T).at(0).layers.end);
        }
        return found;
    };
    CHECK(ends() == std::vector<std::int64_t>{4, 8});
    config.window = 64;
    CHECK(ends() == std::vector<std::int64_t>{4, 8});   // all alike
    // without the window a layer has (12 C + T) / (12 C + 2 W) = 10 times the operations of one with it
    config.layer_pattern = "LLSSSSSS";
    CHECK(ends() == std::vector<std::int64_t>{1, 8});
}
