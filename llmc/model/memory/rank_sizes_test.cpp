// Checks the part of a micro-batch and of the vocabulary that each rank of a mesh has.
#include "llmc/model/memory/rank_sizes.h"

#include <doctest/doctest.h>

TEST_CASE("rank sizes: the parts of tp and cp ranks are the whole") {
    for (const std::int64_t vocab : {100, 129, 1000}) {
        const ModelConfig config = custom_model_config(2, 4, 64, 48, vocab);
        for (const MeshShape& mesh :
             {MeshShape{}, MeshShape{1, 2, 2, 1}, MeshShape{1, 1, 1, 4}, MeshShape{2, 1, 3, 2}}) {
            const RankSizes whole = rank_sizes(config, {}, false, 3, 48);
            int tokens = 0, heads = 0;
            for (int tp = 0; tp < mesh.tp; tp++) {
                const RankLayout place{mesh, {0, 0, 0, tp}, 0};
                const RankSizes part = rank_sizes(config, place, true, 3, 48);
                CHECK(part.T * mesh.cp == whole.T);
                CHECK(part.rows() * mesh.cp == whole.rows());
                CHECK(part.residual_rows() * mesh.tp == part.rows());
                CHECK(rank_sizes(config, place, false, 3, 48).residual_rows() == part.rows());
                CHECK(part.F * mesh.tp == whole.F);
                CHECK(part.V <= part.Vp);
                if (part.V > 0) CHECK(part.first_token == tokens);
                tokens += part.V;
                heads += part.NH;
            }
            CHECK(tokens == vocab);
            CHECK(heads == whole.NH);
        }
    }
}

TEST_CASE("rank sizes: a single sequence that cp ranks and tp ranks can share has a multiple of so many tokens") {
    CHECK(sequence_unit(1, 1) == 1);
    CHECK(sequence_unit(1, 3) == 3);
    CHECK(sequence_unit(2, 1) == 4);
    CHECK(sequence_unit(2, 3) == 12);   // 24 work, 18 are no zigzag, 20 leave ten rows for three
    CHECK(sequence_unit(3, 2) == 6);
    CHECK(sequence_unit(4, 4) == 16);
}

TEST_CASE("rank sizes: tp ranks that can share the heads of queries but not those of keys and values") {
    ModelConfig config = custom_model_config(2, 6, 96, 48, 100);
    config.own_kv_heads = 2;
    for (const int tp : {1, 2, 6}) check_tensor_parallel(config, {1, 1, 1, tp}, false, 3, 48);
    try {
        check_tensor_parallel(config, {1, 1, 1, 3}, false, 3, 48);
        FAIL("3 ranks share 2 heads of keys and values");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        CHECK(error.message() == "--tp 3: ranks cannot share the model's 2 heads of keys and values evenly");
        CHECK(error.hint() == "The nearest values that work are 2 and 6.");
    }
}
