#include "llmc/model/parameters/param_storage.h"

#include <doctest/doctest.h>

#include <map>

#include "llmc/mesh/element_home_testing.h"

namespace {

const ModelConfig small = custom_model_config(4, 4, 64, 24, 200);

}   // namespace

TEST_CASE("param_storage: on one rank every tensor has its place, aligned and in table order") {
    const ParamTable table(small);
    const ParamStorage storage(table);
    CHECK(storage.units().size() == 6);
    CHECK(storage.tensors().size() == static_cast<std::size_t>(table.size()));
    std::int64_t elements = 0;
    for (const UnitLayout& unit : storage.units()) {
        std::int64_t next = 0;
        for (int i : unit.tensors) {
            const TensorLayout& tensor = storage.tensors()[static_cast<std::size_t>(i)];
            CHECK(storage.find(tensor.param) == &tensor);
            CHECK(tensor.offset == next);
            CHECK(tensor.offset % shard_alignment == 0);
            CHECK(tensor.elements == table[tensor.param].tensor.elements());
            next += tensor.padded;
            elements += tensor.elements;
        }
        CHECK(unit.padded == next);
        CHECK(storage.unit_elements(unit, StateKind::optimizer) == unit.padded);
    }
    CHECK(elements == table.elements());
    CHECK(elements == parameter_count(small));
}

TEST_CASE("param_storage: a sharded buffer is the whole one divided by the ZeRO ranks, tensor by tensor") {
    const ParamTable table(small);
    for (int dp : {1, 2, 3, 7}) {
        const RankLayout place{{1, dp, 1, 2}, {0, dp - 1, 0, 1}, 2};
        const ParamStorage storage(table, place, {{{0, 4}}, true, true});
        for (const TensorLayout& tensor : storage.tensors()) {
            CHECK(storage.tensor_offset(tensor, StateKind::parameters) == tensor.offset);
            CHECK(storage.tensor_offset(tensor, StateKind::gradients) * dp == tensor.offset);
            CHECK(storage.padded_elements(tensor, StateKind::gradients) ==
                  stored_elements(table[tensor.param].tensor, place, StateKind::gradients));
            CHECK(storage.tensor_offset(tensor, StateKind::gradients) % shard_alignment == 0);
        }
    }
}

TEST_CASE("param_storage: experts that are dealt out are a span of their unit, cut over the ranks that hold them") {
    ModelConfig config = small;
    config.experts = 8, config.shared_experts = 1;
    const ParamTable table(config);
    const RankLayout place{{1, 4, 1, 2, 0, 4}, {0, 3, 0, 1}, 2};   // two ranks hold the same two experts
    const ParamStorage storage(table, place, {{{0, 4}}, true, true});
    for (const UnitLayout& unit : storage.units()) {
        REQUIRE(unit.spans.size() == (table.is_layer(unit.unit) ? 2u : 1u));
        std::int64_t next = 0, next_kept = 0;
        for (const SpanLayout& span : unit.spans) {
            const int ranks = group_size(place.mesh, span.zero);
            CHECK(ranks == (span.zero == holder_axes ? 2 : 4));
            CHECK(span.offset == next);
            CHECK(span.kept_offset == next_kept);
            CHECK(span.kept * ranks == span.padded);
            next += span.padded, next_kept += span.kept;
            for (int i : span.tensors) {
                const TensorLayout& tensor = storage.tensors()[static_cast<std::size_t>(i)];
                const ParamInfo& info = table[tensor.param];
                CHECK((span.zero == holder_axes) == (info.name.find("mlp.experts.") != std::string::npos));
                CHECK(tensor.elements * (span.zero == holder_axes ? 4 : 1) ==
                      (span.zero == holder_axes ? info.tensor.elements() : tp_shard_of(info.tensor, 2).elements()));
                CHECK(storage.padded_elements(tensor, StateKind::gradients) ==
                      stored_elements(info.tensor, place, StateKind::gradients));
            }
        }
        CHECK(next == unit.padded);
        CHECK(next_kept == unit.kept);
    }
}

TEST_CASE("param_storage: matrices that are dealt out are whole on one rank each, and no rank has much more to do") {
    const ParamTable table(model_config("gpt2:124M"));
    for (const auto& [dp, stages] : {std::tuple(3, 1), std::tuple(8, 1), std::tuple(5, 2)}) {
        std::vector<double> cost(static_cast<std::size_t>(dp), 0.0);
        double costliest = 0;
        std::map<int, int> owners;   // by parameter
        const LayerRange layers = balance_layers(12, stages, 0.0, 0.0).back();
        for (int rank = 0; rank < dp; rank++) {
            const RankLayout place{{stages, dp, 1, 2}, {stages - 1, rank, 0, 1}, 1, true};
            const ParamStorage storage(table, place, {{layers}, stages == 1, true});
            for (const TensorLayout& tensor : storage.tensors()) {
                const ParamInfo& info = storage.table()[tensor.param];
                const std::int64_t kept = storage.padded_elements(tensor, StateKind::optimizer);
                CHECK(storage.tensor_offset(tensor, StateKind::parameters) == tensor.offset);
                CHECK(storage.tensor_offset(tensor, StateKind::optimizer) % shard_alignment == 0);
                if (!info.orthogonal) {
                    CHECK(kept * dp == tensor.padded);
                    continue;
                }
                CHECK(kept == (info.tensor.owner == rank ? tensor.elements : 0));
                CHECK(storage.owned_offset(tensor, StateKind::parameters) == 0);
                if (kept == 0) continue;
                owners[tensor.param]++;
                const double own = static_cast<double>(info.tensor.elements()) * 768.0;   // likewise for each block
                cost[static_cast<std::size_t>(rank)] += own;
                costliest = std::max(costliest, own);
            }
            CHECK(storage.largest_owned() ==
                  std::max<std::int64_t>(zero_cut(50304 * 768 / 2, dp).shard, 3072 * 768 / 2));
        }
        CHECK(owners.size() == static_cast<std::size_t>(4 * layers.size()));
        for (const auto& [param, count] : owners) CHECK(count == 1);
        CHECK(std::ranges::max(cost) - std::ranges::min(cost) <= costliest);
    }
}

TEST_CASE("param_storage: pipeline stages hold every unit once, and the tied embedding at both ends") {
    const ParamTable table(small);
    for (int pp : {1, 2, 3, 4}) {
        std::map<int, int> owners;   // by parameter
        const std::vector<LayerRange> ranges = balance_layers(small.layers, pp, 0.0, 1.0);
        for (int stage = 0; stage < pp; stage++) {
            const RankLayout place{{pp, 2, 1, 1}, {stage, 0, 0, 0}, 1};
            const ParamStorage storage(table, place,
                                       {{ranges[static_cast<std::size_t>(stage)]}, stage == 0, stage == pp - 1});
            for (const TensorLayout& tensor : storage.tensors()) owners[tensor.param]++;
        }
        for (int i = 0; i < table.size(); i++) CHECK(owners[i] == (table[i].tensor.tied && pp > 1 ? 2 : 1));
    }
}

TEST_CASE("param_storage: where the classifier is not tied, every tensor has one stage") {
    ModelConfig config = small;
    config.tied = false;
    const ParamTable table(config);
    const RankLayout place{{2, 1, 1, 1}, {1, 0, 0, 0}, 0};
    const ParamStorage last(table, place, {{{2, 4}}, false, true});
    CHECK(last.find(table.index("wte.weight")) == nullptr);
    CHECK(last.find(table.index("lm_head.weight")) != nullptr);
}

TEST_CASE("param_storage: layers that follow each other on a rank have different sets, whatever their numbers") {
    const ParamTable table(custom_model_config(9, 4, 64, 24, 200));
    const ParamStorage storage(table, RankLayout{}, {{{0, 3}, {6, 9}}, true, false});   // layers 2 and 6 are neighbours
    std::vector<int> sets;
    for (std::size_t slot = 0; slot < storage.units().size(); slot++) {
        sets.push_back(storage.layer_set(static_cast<int>(slot), 2));
    }
    CHECK(sets == std::vector<int>{-1, 0, 1, 0, 1, 0, 1});
    Arena arena;
    const auto state = ModelState<float>::rotating(arena, "turns", storage, 2);
    for (int slot = 1; slot < 6; slot++) CHECK(state.unit(slot).data() != state.unit(slot + 1).data());
    for (int slot = 1; slot < 5; slot++) CHECK(state.unit(slot).data() == state.unit(slot + 2).data());
}

TEST_CASE("param_storage: a state is seen as elements of its own type alone, and counts its bytes by it") {
    const ParamStorage storage{ParamTable(small)};
    for (const DType type : {DType::fp32, DType::bf16}) {
        INFO(name_of(type));
        Arena arena;
        const StateBuffers state(arena, type, "state", storage, StateKind::gradients);
        const StateBuffers turns(arena, type, "turns", storage, StateKind::unsharded, 2);
        std::size_t elements = 0;
        for (const UnitLayout& unit : storage.units()) elements += static_cast<std::size_t>(unit.padded);
        CHECK(state.bytes() == elements * size_of(type));
        CHECK(turns.bytes() == elements * size_of(type));
        const int param = storage.table().index("mlp.c_fc.weight", 1);
        const std::int64_t offset = storage.find(param)->offset * static_cast<std::int64_t>(size_of(type));
        const auto* const unit = static_cast<std::byte*>(state.unit(storage.find(param)->slot).data);
        CHECK(state.tensor(param).data == unit + offset);
        const bool fp32 = type == DType::fp32;
        if (fp32) CHECK_THROWS_AS(state.as<bf16>(), Error);
        if (fp32) CHECK_THROWS_AS(state.tensor(param).as<bf16>(), Error);
        if (!fp32) CHECK_THROWS_AS(state.as<float>(), Error);
        CHECK((fp32 ? static_cast<void*>(state.as<float>().tensor(param))
                    : static_cast<void*>(state.as<bf16>().tensor(param))) == unit + offset);
    }
}

TEST_CASE("param_storage: launches know gradients as wide as the parameters or wider, and no others") {
    auto bytes = [](DType type, auto parameter) {
        return with_gradient_type<decltype(parameter)>(type, []<class G> { return sizeof(G); });
    };
    CHECK(bytes(DType::fp32, 0.0f) == 4);
    CHECK(bytes(DType::fp32, bf16()) == 4);
    CHECK(bytes(DType::bf16, bf16()) == 2);
    CHECK_THROWS_AS(bytes(DType::bf16, 0.0f), Error);
    CHECK_THROWS_AS(bytes(DType::int32, bf16()), Error);
}
