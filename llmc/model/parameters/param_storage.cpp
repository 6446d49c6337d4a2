#include "llmc/model/parameters/param_storage.h"

#include <algorithm>
#include <map>
#include <utility>

ParamStorage::ParamStorage(const ParamTable& table)
    : ParamStorage(table, RankLayout{}, StageUnits{{{0, table.config().layers}}, true, true}) {}

ParamStorage::ParamStorage(const ParamTable& table, const RankLayout& place, const StageUnits& stage)
    : table_(table), place_(place), stage_(stage), place_of_param_(static_cast<std::size_t>(table.size()), -1) {
    if (place_.assigns_matrices && place_.zero_stage <= 1) deal_matrices();
    auto add_unit = [&](int unit, bool tied_copy) {
        UnitLayout place_of_unit{unit, table_.unit_name(unit), 0, {}, 0, {}};
        for (int param : table_.unit_params(unit, tied_copy)) {
            append(place_of_unit, layout_of(param, static_cast<int>(units_.size())));
        }
        units_.push_back(std::move(place_of_unit));
    };
    if (stage_.embedding) add_unit(table_.embedding_unit(), false);
    for (const LayerRange& chunk : stage_.chunks) {
        for (std::int64_t layer = chunk.begin; layer < chunk.end; layer++) {
            add_unit(table_.layer_unit(static_cast<int>(layer)), false);
        }
    }
    if (stage_.head) add_unit(table_.head_unit(), !stage_.embedding && table_.config().tied);
}

ParamStorage::ParamStorage(const ParamStorage& whole, const std::function<bool(const ParamInfo&)>& keeps,
                           const std::function<TensorSpec(const TensorSpec&)>& shape)
    : table_(whole.table_),
      place_(whole.place_),
      stage_(whole.stage_),
      place_of_param_(whole.place_of_param_.size(), -1) {
    for (const UnitLayout& unit : whole.units_) {
        UnitLayout& layout = units_.emplace_back(UnitLayout{unit.unit, unit.name, 0, {}, 0, {}});
        for (int i : unit.tensors) {
            TensorLayout tensor = whole.tensors_[static_cast<std::size_t>(i)];
            if (!keeps(table_[tensor.param])) continue;
            if (shape != nullptr) {
                table_.set_shape(tensor.param, shape(table_[tensor.param].tensor));
                tensor = layout_of(tensor.param, tensor.slot);
            }
            append(layout, tensor);
        }
    }
}

// Returns the sizes of a rank's part of a tensor, without its offsets.
TensorLayout ParamStorage::layout_of(int param, int slot) const {
    const TensorSpec& spec = table_[param].tensor;
    const AxisSet zero = zero_axes_of(spec, place_.mesh);
    TensorLayout tensor;
    tensor.param = param;
    tensor.slot = slot;
    tensor.elements = held_part_of(spec, place_.mesh).elements();
    const ZeroCut cut = zero_cut(tensor.elements, spec.owner < 0 ? group_size(place_.mesh, zero) : 1);
    tensor.padded = cut.padded;
    tensor.kept = spec.owner < 0 || spec.owner == group_rank(place_.mesh, place_.at, zero) ? cut.shard : 0;
    return tensor;
}

void ParamStorage::append(UnitLayout& unit, TensorLayout tensor) {
    tensor.offset = unit.padded;
    tensor.kept_offset = unit.kept;
    const AxisSet zero = zero_axes_of(table_[tensor.param].tensor, place_.mesh);
    if (unit.spans.empty() || unit.spans.back().zero != zero) {
        unit.spans.push_back({.zero = zero, .offset = unit.padded, .kept_offset = unit.kept});
    }
    SpanLayout& span = unit.spans.back();
    unit.padded += tensor.padded, span.padded += tensor.padded;
    unit.kept += tensor.kept, span.kept += tensor.kept;
    unit.tensors.push_back(static_cast<int>(tensors_.size()));
    span.tensors.push_back(static_cast<int>(tensors_.size()));
    place_of_param_[static_cast<std::size_t>(tensor.param)] = static_cast<int>(tensors_.size());
    tensors_.push_back(tensor);
}

// Gives an owner to each matrix of this stage's layers.
void ParamStorage::deal_matrices() {
    struct Matrices {   // dealt out to the same ranks
        std::vector<int> params;
        std::vector<double> costs;
        int ranks = 1;
    };
    std::map<bool, Matrices> by_ranks;   // other ranks share experts that are dealt out
    for (const LayerRange& chunk : stage_.chunks) {
        for (std::int64_t layer = chunk.begin; layer < chunk.end; layer++) {
            for (int param : table_.unit_params(table_.layer_unit(static_cast<int>(layer)))) {
                if (!table_[param].orthogonal) continue;
                const TensorSpec& tensor = table_[param].tensor;
                double cost = 0;
                for (std::int64_t rows : tensor.blocks.empty() ? std::vector{tensor.rows} : tensor.blocks) {
                    cost += static_cast<double>(rows * tensor.cols) * static_cast<double>(std::min(rows, tensor.cols));
                }
                Matrices& matrices = by_ranks[is_expert_parallel(tensor, place_.mesh)];
                matrices.params.push_back(param);
                matrices.costs.push_back(cost);
                matrices.ranks = group_size(place_.mesh, zero_axes_of(tensor, place_.mesh));
            }
        }
    }
    for (const auto& [_, matrices] : by_ranks) {
        const std::vector<int> owners = assign_by_cost(matrices.costs, matrices.ranks);
        for (std::size_t i = 0; i < owners.size(); i++) table_.set_owner(matrices.params[i], owners[i]);
    }
}

const TensorLayout* ParamStorage::find(int param) const {
    const int i = place_of_param_[static_cast<std::size_t>(param)];
    return i < 0 ? nullptr : &tensors_[static_cast<std::size_t>(i)];
}

std::int64_t ParamStorage::unit_elements(const UnitLayout& unit, StateKind state) const {
    return shards(state) ? unit.kept : unit.padded;
}

// Padding rows are the last ones of a tensor that is not row parallel.
std::vector<OwnedRange> ParamStorage::exported_ranges(const TensorLayout& tensor, StateKind state) const {
    const ParamInfo& param = table_[tensor.param];
    const std::int64_t end = param.exported_elements();
    std::vector<OwnedRange> ranges = owned_ranges(param.tensor, place_, state);
    if (end == param.tensor.elements()) return ranges;
    std::erase_if(ranges, [&](const OwnedRange& range) { return range.global.first >= end; });
    for (OwnedRange& range : ranges) {
        ENSURE(range.global.length == 0, param.name, " has padding rows and is row parallel");
        range.length = std::min(range.length, end - range.global.first);
    }
    return ranges;
}

std::int64_t ParamStorage::tensor_offset(const TensorLayout& tensor, StateKind state) const {
    return shards(state) ? tensor.kept_offset : tensor.offset;
}

int ParamStorage::layer_set(int slot, int sets) const {
    auto is_layer = [this](const UnitLayout& unit) { return table_.is_layer(unit.unit); };
    if (!is_layer(units_[static_cast<std::size_t>(slot)])) return -1;
    return static_cast<int>(std::count_if(units_.begin(), units_.begin() + slot, is_layer) % sets);
}

std::int64_t ParamStorage::owned_offset(const TensorLayout& tensor, StateKind state) const {
    return shards(StateKind::optimizer) ? shard_offset(tensor, state) : 0;
}

std::int64_t ParamStorage::shard_offset(const TensorLayout& tensor, StateKind state) const {
    const TensorSpec& spec = table_[tensor.param].tensor;
    if (shards(state) || spec.owner >= 0) return 0;
    return group_rank(place_.mesh, place_.at, zero_axes_of(spec, place_.mesh)) * tensor.kept;
}

std::int64_t ParamStorage::padded_elements(const TensorLayout& tensor, StateKind state) const {
    return shards(state) ? tensor.kept : tensor.padded;
}

std::int64_t ParamStorage::largest_owned() const {
    std::int64_t largest = 0;
    for (const TensorLayout& tensor : tensors_) {
        const bool whole = !shards(StateKind::optimizer) || table_[tensor.param].tensor.owner >= 0;
        largest = std::max(largest, whole ? tensor.padded : tensor.kept);
    }
    return largest;
}

StateBuffers::StateBuffers(Arena& arena, DType type, const std::string& group, const ParamStorage& storage,
                           StateKind state, int layer_sets)
    : storage_(&storage), state_(state), type_(type) {
    std::vector<DeviceBuffer<std::byte>> sets(static_cast<std::size_t>(layer_sets));
    for (const UnitLayout& unit : storage.units()) {
        const std::size_t bytes = static_cast<std::size_t>(storage.unit_elements(unit, state)) * size_of(type);
        const int set = layer_sets > 0 ? storage.layer_set(static_cast<int>(buffers_.size()), layer_sets) : -1;
        DeviceBuffer<std::byte> unshared;
        DeviceBuffer<std::byte>& buffer = set < 0 ? unshared : sets[static_cast<std::size_t>(set)];
        const std::string name = set < 0 ? unit.name : text("layer set ", set);
        if (buffer.size() == 0) buffer = arena.allocate<std::byte>(group + "/" + name, bytes);
        ENSURE(buffer.size() == bytes, "layers of ", buffer.size(), " and ", bytes, " bytes cannot take turns");
        buffers_.push_back(buffer);
    }
}

TypedPointer StateBuffers::tensor(int param) const {
    const TensorLayout* place = storage_->find(param);
    return place ? unit(place->slot) + storage_->tensor_offset(*place, state_) : TypedPointer(nullptr, type_);
}

TypedPointer StateBuffers::owned(int param) const {
    const TensorLayout* place = storage_->find(param);
    return place ? tensor(param) + storage_->owned_offset(*place, state_) : TypedPointer(nullptr, type_);
}

TypedPointer StateBuffers::shard(int param) const {
    const TensorLayout* place = storage_->find(param);
    return place ? tensor(param) + storage_->shard_offset(*place, state_) : TypedPointer(nullptr, type_);
}

std::size_t StateBuffers::bytes() const {
    std::size_t sum = 0;
    for (const DeviceBuffer<std::byte>& buffer : buffers_) sum += buffer.bytes();
    return sum;
}

void StateBuffers::zero(cudaStream_t stream) const {
    for (const DeviceBuffer<std::byte>& buffer : buffers_) buffer.zero(stream);
}
