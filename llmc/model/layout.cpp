#include "llmc/model/layout.h"

ModelLayout::ModelLayout(const ParamTable& table)
    : ModelLayout(table, ShardPlace{}, StageUnits{{0, table.config().layers}, true, true}) {}

ModelLayout::ModelLayout(const ParamTable& table, const ShardPlace& place, const StageUnits& stage)
    : table_(table), place_(place), stage_(stage), place_of_param_(static_cast<std::size_t>(table.size()), -1) {
    auto add_unit = [&](int unit, bool tied_copy) {
        UnitPlace place_of_unit{unit, table_.unit_name(unit), 0, {}};
        for (int param : table_.unit_params(unit, tied_copy)) {
            TensorPlace tensor;
            tensor.param = param;
            tensor.slot = static_cast<int>(units_.size());
            tensor.offset = place_of_unit.room;
            tensor.elements = slab_of(table_[param].tensor, place_.mesh.tp).elements();
            tensor.room = zero_cut(tensor.elements, place_.mesh.zero_ranks()).padded;
            place_of_unit.room += tensor.room;
            place_of_unit.tensors.push_back(static_cast<int>(tensors_.size()));
            place_of_param_[static_cast<std::size_t>(param)] = static_cast<int>(tensors_.size());
            tensors_.push_back(tensor);
        }
        units_.push_back(std::move(place_of_unit));
    };
    if (stage_.embedding) add_unit(table_.embedding_unit(), false);
    for (std::int64_t layer = stage_.layers.begin; layer < stage_.layers.end; layer++) {
        add_unit(table_.layer_unit(static_cast<int>(layer)), false);
    }
    if (stage_.head) add_unit(table_.head_unit(), !stage_.embedding);
}

const TensorPlace* ModelLayout::find(int param) const {
    const int i = place_of_param_[static_cast<std::size_t>(param)];
    return i < 0 ? nullptr : &tensors_[static_cast<std::size_t>(i)];
}

int ModelLayout::shards(StateKind state) const {
    return is_sharded(state, place_.zero_stage) ? place_.mesh.zero_ranks() : 1;
}

std::int64_t ModelLayout::unit_elements(const UnitPlace& unit, StateKind state) const {
    return unit.room / shards(state);
}

std::int64_t ModelLayout::tensor_offset(const TensorPlace& tensor, StateKind state) const {
    return tensor.offset / shards(state);
}

std::int64_t ModelLayout::owned_offset(const TensorPlace& tensor, StateKind state) const {
    if (shards(StateKind::optimizer) == 1 || shards(state) > 1) return 0;
    return zero_rank(place_.mesh, place_.at) * tensor_room(tensor, StateKind::optimizer);
}

std::int64_t ModelLayout::tensor_room(const TensorPlace& tensor, StateKind state) const {
    return tensor.room / shards(state);
}
