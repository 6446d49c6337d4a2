// Layout of a rank's parameters, and of everything else shaped like them (gradients, moments, master weights).
//
// Storage is one buffer per unit (embedding, each layer, head): the piece that ZeRO gathers or reduces at once and that
// a pipeline stage owns. Within a unit, tensors follow each other in table order, each padded so that its ZeRO shards
// are equal and aligned (shard.h). A sharded buffer holds shard after shard instead, in the same order.
//
// Consecutive tensors that are summed over the same ranks (zero_axes_of) are a span: it is contiguous in both buffers,
// and in a sharded one every offset from its beginning is the whole buffer's divided by the number of these ranks. A
// unit is one span unless experts are dealt out.
//
// If matrices are dealt out (RankLayout::assigns_matrices, for Muon), ZeRO-1 does not cut the matrices of layers: each
// has one owner among the ranks that ZeRO would cut it over (for experts that are dealt out, their holders). They are
// dealt by cost, larger side x smaller side^2 of every block, the costliest first, each to the rank with the least so
// far. Ranks then keep different sizes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/mesh/shard.h"
#include "llmc/model/parameters/param_table.h"

// One tensor this rank holds a tp shard of.
struct TensorLayout {
    int param = -1;                           // index in the ParamTable
    int slot = -1;                            // index in the storage's units
    std::int64_t offset = 0;                  // offset of the tp shard in its unit's whole buffer
    std::int64_t elements = 0;                // elements of the tp shard, without padding
    std::int64_t padded = 0;                  // elements with padding: ZeRO ranks x shard, or the owner's
    std::int64_t kept_offset = 0, kept = 0;   // this rank's shard in its unit's sharded buffer; elements
};

struct SpanLayout {
    AxisSet zero = zero_axes;                 // axes over which gradients are summed and ZeRO shards cut
    std::int64_t offset = 0, padded = 0;      // offset in its unit's whole buffer, and elements
    std::int64_t kept_offset = 0, kept = 0;   // likewise in the sharded buffer
    std::vector<int> tensors = {};            // indices in the storage's tensors

    bool is_expert_parallel() const { return zero.contains(Axis::holder); }   // experts that are dealt out
};

struct UnitLayout {
    int unit = -1;   // as ParamTable numbers them
    std::string name;
    std::int64_t padded = 0;         // elements of the whole buffer
    std::vector<int> tensors;        // indices in the storage's tensors
    std::int64_t kept = 0;           // elements of the sharded buffer
    std::vector<SpanLayout> spans;   // all of it, in order
};

// Units that a rank holds: those of its pipeline stage. The layers of its chunks need not follow each other.
struct StageUnits {
    std::vector<LayerRange> chunks;   // ascending
    bool embedding = true, head = true;
};

class ParamStorage {
public:
    // Lays out everything on one rank.
    explicit ParamStorage(const ParamTable& table);
    // Lays out the part of one rank of a mesh.
    ParamStorage(const ParamTable& table, const RankLayout& place, const StageUnits& stage);
    // Lays out the units of `whole` with only the tensors that `keeps` chooses, in the shapes that `shape` gives them,
    // if not null; these have no owner.
    ParamStorage(const ParamStorage& whole, const std::function<bool(const ParamInfo&)>& keeps,
                 const std::function<TensorSpec(const TensorSpec&)>& shape = nullptr);

    const ParamTable& table() const { return table_; }
    const RankLayout& place() const { return place_; }
    const StageUnits& stage() const { return stage_; }
    const std::vector<UnitLayout>& units() const { return units_; }
    const std::vector<TensorLayout>& tensors() const { return tensors_; }   // units in order, table order within each

    // Returns the place of a parameter; null if this rank holds none of it.
    const TensorLayout* find(int param) const;

    // Returns the elements of a unit's buffer: whole, or this rank's shards.
    std::int64_t unit_elements(const UnitLayout& unit, StateKind state) const;
    // Returns owned_ranges() of a tensor without the rows that only pad the vocabulary, which stay zero.
    std::vector<OwnedRange> exported_ranges(const TensorLayout& tensor, StateKind state) const;
    // Return the offset and the elements (padding included) of a tensor in such a buffer.
    std::int64_t tensor_offset(const TensorLayout& tensor, StateKind state) const;
    std::int64_t padded_elements(const TensorLayout& tensor, StateKind state) const;
    // Returns the elements of the largest part of a tensor that a rank owns.
    std::int64_t largest_owned() const;
    // Returns which of `sets` shared buffers holds a unit's unsharded copy: the layers of this rank take turns in
    // order. -1: the unit has memory of its own (embedding, head). Nothing else knows the turns.
    int layer_set(int slot, int sets) const;
    // Returns where this rank's ZeRO shard begins in a tensor of such a buffer, whether or not the ZeRO stage uses
    // shards.
    std::int64_t shard_offset(const TensorLayout& tensor, StateKind state) const;
    // Returns where the part begins that this rank's optimizer owns: all of the tensor at stage 0.
    std::int64_t owned_offset(const TensorLayout& tensor, StateKind state) const;

private:
    bool shards(StateKind state) const { return is_sharded(state, place_.zero_stage); }
    void deal_matrices();
    TensorLayout layout_of(int param, int slot) const;
    void append(UnitLayout& unit, TensorLayout tensor);   // after the tensors that the unit has

    ParamTable table_;
    RankLayout place_;
    StageUnits stage_;
    std::vector<UnitLayout> units_;
    std::vector<TensorLayout> tensors_;
    std::vector<int> place_of_param_;   // index in tensors_, or -1
};

template <class T>
class ModelState;

// One buffer per unit, for one kind of state, of elements whose type is known at run time.
class StateBuffers {
public:
    StateBuffers() = default;   // none
    // Names the buffers "<group>/<unit>". Contents are undefined, padding included. `layer_sets`: buffers that layers
    // share in turns (ParamStorage::layer_set), for unsharded copies that exist only while the model computes with them
    // (llmc/parallel/zero.h); 0: every unit has its own.
    StateBuffers(Arena& arena, DType type, const std::string& group, const ParamStorage& storage, StateKind state,
                 int layer_sets = 0);

    bool exists() const { return storage_ != nullptr; }
    const ParamStorage& storage() const { return *storage_; }
    StateKind state() const { return state_; }
    DType type() const { return type_; }
    std::size_t bytes() const;
    void zero(cudaStream_t stream) const;

    TypedPointer unit(int slot) const { return {buffer(slot).data(), type_}; }
    // Returns the first element that this rank keeps of a tensor; null if it keeps none.
    TypedPointer tensor(int param) const;
    // Returns the part of a tensor that this rank's optimizer owns: tensor() itself if this state is sharded.
    TypedPointer owned(int param) const;
    // Returns this rank's ZeRO shard of a tensor, whatever the stage.
    TypedPointer shard(int param) const;
    int index(std::string_view name, int layer = -1) const { return storage_->table().index(name, layer); }

    // Returns the same state as elements of type T, which must be theirs.
    template <class T>
    ModelState<T> as() const {
        return ModelState<T>(*this);
    }

protected:
    const DeviceBuffer<std::byte>& buffer(int slot) const { return buffers_[static_cast<std::size_t>(slot)]; }

private:
    const ParamStorage* storage_ = nullptr;   // outlives the state
    StateKind state_ = StateKind::parameters;
    DType type_ = DType::fp32;
    std::vector<DeviceBuffer<std::byte>> buffers_;
};

// State of elements of type T.
template <class T>
class ModelState : public StateBuffers {
public:
    ModelState() = default;
    ModelState(Arena& arena, const std::string& group, const ParamStorage& storage, StateKind state)
        : StateBuffers(arena, dtype_of<T>, group, storage, state) {}
    explicit ModelState(const StateBuffers& buffers) : StateBuffers(buffers) {
        ENSURE(type() == dtype_of<T>, "a state of ", name_of(type()), " taken as ", name_of(dtype_of<T>));
    }
    // Makes an unsharded state whose layers take turns.
    static ModelState rotating(Arena& arena, const std::string& group, const ParamStorage& storage, int layer_sets) {
        return ModelState(StateBuffers(arena, dtype_of<T>, group, storage, StateKind::unsharded, layer_sets));
    }

    DeviceBuffer<T> unit(int slot) const { return buffer(slot).template as<T>(); }
    T* tensor(int param) const { return StateBuffers::tensor(param).template as<T>(); }
    T* tensor(std::string_view name, int layer = -1) const { return tensor(index(name, layer)); }
    T* owned(int param) const { return StateBuffers::owned(param).template as<T>(); }
    T* shard(int param) const { return StateBuffers::shard(param).template as<T>(); }
};
