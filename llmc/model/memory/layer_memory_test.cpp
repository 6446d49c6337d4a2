// What a layer keeps: in which order, and of a mixture of experts.
#include "llmc/model/memory/layer_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace {

RankSizes sizes_of_experts(int ep) {
    ModelConfig config = custom_model_config(2, 4, 64, 48, 100);
    config.experts = 8, config.own_experts_per_token = 3, config.own_expert_width = 40;
    RankSizes sizes = rank_sizes(config, {}, false, 3, 48);
    sizes.ep = ep;
    return sizes;
}

KeptTensor kept(const RankSizes& sizes, std::string_view name) {
    const std::vector<KeptTensor> all = layer_kept(sizes);
    const auto found = std::ranges::find(all, name, &KeptTensor::name);
    REQUIRE(found != all.end());
    return *found;
}

}   // namespace

TEST_CASE("layer memory: only experts that are dealt out keep copies of their tokens' rows") {
    const RankSizes own = sizes_of_experts(1), dealt = sizes_of_experts(2);
    CHECK(kept(own, "expert_in").elements == 0);
    CHECK(kept(own, "expert_act").elements == 3 * 48 * 3 * 40);
    CHECK(kept(dealt, "expert_in").elements == 2 * 3 * 48 * 3 * 64);
    CHECK(kept(dealt, "expert_in").dropped_from == Recompute::block);
}

TEST_CASE("layer memory: activations are listed in the order in which forward makes them") {
    ModelConfig config = custom_model_config(2, 4, 64, 48, 100);
    auto names = [&] {
        std::vector<std::string> result;
        for (const KeptTensor& tensor : layer_kept(rank_sizes(config, {}, false, 3, 48))) {
            if (!tensor.statistic && tensor.elements > 0) result.emplace_back(tensor.name);
        }
        return result;
    };
    CHECK(names() == std::vector<std::string>{"ln1", "qkv", "atty", "residual2", "ln2", "fch", "fch_act"});
    config.norm_position = NormPosition::after, config.qk_norm = QkNorm::row;
    CHECK(names() == std::vector<std::string>{"q_raw", "k_raw", "qkv", "atty", "attproj", "residual2", "fch", "fch_act",
                                              "fcproj"});
}
