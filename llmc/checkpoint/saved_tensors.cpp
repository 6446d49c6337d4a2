#include "llmc/checkpoint/saved_tensors.h"

#include <algorithm>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/kernels/optim/master_halves.cuh"

namespace {

constexpr std::int64_t slice_elements = 1 << 20;   // elements read at once

template <class States>
bool has_weights(const States& states) {
    return std::ranges::any_of(states, &OptimizerStateSpec::is_weights);
}

// Tells whether a run keeps exact weights beside rounded parameters: master weights, whole or their lower halves.
template <class States>
bool has_masters(const States& states) {
    return has_weights(states) || std::ranges::any_of(states, &OptimizerStateSpec::is_lower_half);
}

// Tells which of these a file has of a parameter; null: neither.
const char* saved_masters(const SafetensorsFile& file, const ParamInfo& info) {
    for (const char* name : {kMaster, kLowerHalf}) {
        if (file.find(text(name, ".", info.name)) != nullptr) return name;
    }
    return nullptr;
}

std::string unit_file(const char* kind, const ParamTable& table, int unit, int replica = 0) {
    return text(replica > 0 ? text("replica-", replica, "-") : "",
                formatted("%s-%05d-of-%05d.safetensors", kind, unit + 1, table.units()));
}

// Returns the file of what one of compressed_sums() has for itself. With groups the number is a group's.
std::string file_of_sum(const ParamTable& table, int unit, int sum) {
    return text("data-rank-", sum, "-", unit_file("optimizer", table, unit));
}

// Returns a rank of the stage that has a unit's part of a sum: a data-parallel rank, or one of a group; their tp ranks
// take turns.
int writer_of_sum(const MeshShape& mesh, int sum, int unit) {
    const int ranks = mesh.stage() / compressed_sums(mesh);
    return sum * ranks + unit % ranks;
}

// Calls use(writer, unit, param, state, sum) for all that a stage saves, in the order of gathering. `writer`: rank of
// the stage that writes it; `state`: null for the parameters; `sum`: one of compressed_sums(), or -1 for what all of
// them have alike.
template <class Use>
void for_saved(const TrainedTensors& tensors, int ranks, Use&& use) {
    int writer = 0;   // units are dealt out in turns
    for (const UnitLayout& unit : tensors.storage().units()) {
        const std::vector<int> params = tensors.storage().table().unit_params(unit.unit);
        if (tensors.replica == 0 || !has_weights(tensors.states)) {
            for (int param : params) use(writer, unit.unit, param, nullptr, -1);
        }
        for (const OptimizerState& state : tensors.states) {
            if (state.of_sum) continue;                         // below
            if (tensors.replica > 0 && state.outer) continue;   // the first replica has the same
            for (int param : params) {
                if (state.find(param) != nullptr) use(writer, unit.unit, param, &state, -1);
            }
        }
        const MeshShape& mesh = tensors.storage().place().mesh;
        for (int sum = 0; sum < compressed_sums(mesh); sum++) {
            for (const OptimizerState& state : tensors.states) {
                if (!state.of_sum) continue;
                for (int param : params) {
                    if (state.find(param) == nullptr) continue;
                    use(writer_of_sum(mesh, sum, unit.unit), unit.unit, param, &state, sum);
                }
            }
        }
        writer = (writer + 1) % ranks;
    }
}

// This rank's part of a saved tensor, read slice by slice; padding is zero.
template <class T>
class SavedPart {
public:
    SavedPart(const SafetensorsFile& file, const std::string& name, const ParamStorage& storage,
              const TensorLayout& place, StateKind kind)
        : file_(file),
          entry_(file.entry(name + "." + storage.table()[place.param].name)),
          ranges_(storage.exported_ranges(place, kind)),
          elements_(storage.padded_elements(place, kind)) {
        if (entry_.shape != storage.table()[place.param].file_shape(false) || bytes_of(entry_.type) != sizeof(T)) {
            throw Error(ErrorKind::bad_data,
                        text(file.path(), ": ", entry_.name, " has another shape or type than the model's"));
        }
    }

    // Returns the local elements from `first` on, at most slice_elements of them.
    std::vector<T> slice(std::int64_t first) const {
        const std::int64_t past = std::min(first + slice_elements, elements_);
        std::vector<T> values(static_cast<std::size_t>(past - first), static_cast<T>(0.0f));
        for (const OwnedRange& range : ranges_within(ranges_, first, past)) {
            for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                file_.read(entry_, static_cast<std::uint64_t>(global) * sizeof(T),
                           std::as_writable_bytes(std::span(values))
                               .subspan(static_cast<std::size_t>(local) * sizeof(T),
                                        static_cast<std::size_t>(count) * sizeof(T)));
            });
        }
        return values;
    }

    // Calls use(first, values) for all slices.
    template <class Use>
    void each(Use&& use) const {
        for (std::int64_t first = 0; first < elements_; first += slice_elements) use(first, slice(first));
    }

private:
    const SafetensorsFile& file_;
    const TensorEntry& entry_;
    std::vector<OwnedRange> ranges_;
    std::int64_t elements_;
};

// Reads this rank's part of the exact weights of a parameter, in whichever form the file has them, and calls
// use(first, values) for each slice of floats.
template <class Use>
void read_exact_weights(const SafetensorsFile& file, const ParamStorage& storage, const TensorLayout& place,
                        StateKind kind, Use&& use) {
    const char* const masters = saved_masters(file, storage.table()[place.param]);
    if (masters != nullptr && std::string_view(masters) == kMaster) {
        SavedPart<float>(file, kMaster, storage, place, kind).each(use);
        return;
    }
    const SavedPart<floatX> parameters(file, "parameter", storage, place, kind);
    std::optional<SavedPart<floatX>> lower;
    if (masters != nullptr) lower.emplace(file, kLowerHalf, storage, place, kind);
    parameters.each([&]<class Real>(std::int64_t first, const std::vector<Real>& rounded) {
        std::vector<float> values(rounded.begin(), rounded.end());
        if constexpr (std::is_same_v<Real, bf16>) {
            if (lower) std::ranges::transform(rounded, lower->slice(first), values.begin(), joined);
        }
        use(first, values);
    });
}

// Uploads values into a state's part of a tensor, from local element `first` on.
template <class T>
void upload_slice(const ModelState<T>& state, const TensorLayout& place, std::int64_t first, std::span<const T> values,
                  cudaStream_t stream) {
    const std::int64_t offset = state.storage().tensor_offset(place, state.state()) + first;
    state.unit(place.slot).upload(values, stream, static_cast<std::size_t>(offset));
    wait_for(stream);   // the upload may read `values` until then
}

// Fills a state that starts as a copy of the weights (an average).
void read_average(const SafetensorsFile& file, const OptimizerState& state, const TensorLayout& place,
                  cudaStream_t stream) {
    read_exact_weights(file, *state.storage, place, StateKind::optimizer,
                       [&](std::int64_t first, const std::vector<float>& values) {
                           upload_slice<float>(state.values.as<float>(), place, first, values, stream);
                       });
}

// Reads master weights, of either form, and rounds the parameters from them; this rank keeps as many parameters as
// masters, or more.
void read_masters(const SafetensorsFile& file, const TrainedTensors& tensors, const OptimizerState& masters,
                  const TensorLayout& place, cudaStream_t stream) {
    const ParamStorage& storage = tensors.storage();
    const StateKind kept = tensors.parameters.state();
    const std::int64_t owned = storage.owned_offset(place, kept),
                       owned_end = owned + storage.padded_elements(place, StateKind::optimizer);
    const TensorLayout& own_place = *masters.find(place.param);
    read_exact_weights(file, storage, place, kept, [&](std::int64_t first, const std::vector<float>& values) {
        std::vector<floatX> rounded(values.size());
        std::ranges::transform(values, rounded.begin(), parameter_of<floatX>);
        upload_slice<floatX>(tensors.parameters, place, first, rounded, stream);
        const std::int64_t from = std::max(first, owned),
                           to = std::min(first + static_cast<std::int64_t>(values.size()), owned_end);
        if (from >= to) return;
        const auto own =
            std::span(values).subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from));
        if (!masters.is_lower_half) {
            upload_slice<float>(masters.values.as<float>(), own_place, from - owned, own, stream);
            return;
        }
        std::vector<bf16> lower(own.size());
        std::ranges::transform(own, lower.begin(), lower_half);
        upload_slice<bf16>(masters.values.as<bf16>(), own_place, from - owned, lower, stream);
    });
}

}   // namespace

std::uint64_t checkpoint_tensor_bytes(const ParamTable& table, const std::vector<OptimizerStateSpec>& states,
                                      int replicas, int sums) {
    const std::size_t copies = has_weights(states) ? 1 : 2;   // without masters, parameters are in both files
    std::uint64_t bytes = 0;
    for (const ParamInfo& info : table.all()) {
        const auto elements = static_cast<std::uint64_t>(info.exported_elements());
        const auto more = static_cast<std::size_t>(replicas - 1);
        bytes += elements * (copies + (copies - 1) * more) * sizeof(floatX);
        for (const OptimizerStateSpec& state : states) {
            if (!state.keeps(info)) continue;
            const auto of_state =
                state.shape != nullptr ? static_cast<std::uint64_t>(state.shape(info.tensor).elements()) : elements;
            const std::size_t others = (state.outer ? 0 : more) + static_cast<std::size_t>(state.of_sum ? sums - 1 : 0);
            bytes += of_state * (1 + others) * size_of(state.type);
        }
    }
    return bytes;
}

std::string tensor_index(const ParamTable& table) {
    Json names = Json::object();
    std::uint64_t bytes = 0;
    for (const ParamInfo& info : table.all()) {
        for (const TensorEntry& entry : hugging_face_entries(table, info)) {
            names.add(entry.name, unit_file("model", table, info.unit));
            bytes += entry.bytes();
        }
    }
    const Json metadata = Json::object({{"total_size", bytes}});
    return to_text(Json::object({{"metadata", metadata}, {"weight_map", names}}), 2) + "\n";
}

namespace {

// Returns the type of a state's elements in files.
TensorType type_of(const OptimizerStateSpec& state) {
    if (state.is_lower_half) return TensorType::U16;
    return state.type == DType::fp32 ? TensorType::F32 : TensorType::BF16;
}

// Returns the bytes that a tensor takes, so that the next one begins at a multiple of a line of a cache.
std::size_t bytes_held(const ParamInfo& info, const OptimizerState* state) {
    constexpr std::size_t line = 64;
    const std::size_t size = state != nullptr ? size_of(state->type) : sizeof(floatX);
    return (static_cast<std::size_t>(info.tensor.elements()) * size + line - 1) / line * line;
}

const ParamInfo& info_of(const TrainedTensors& tensors, int param, const OptimizerState* state) {
    return (state != nullptr ? state->storage->table() : tensors.storage().table())[param];
}

}   // namespace

std::size_t HostTensors::bytes_of(const TrainedTensors& tensors, int ranks, int rank) {
    std::size_t bytes = 0;
    for_saved(tensors, ranks, [&](int writer, int, int param, const OptimizerState* state, int) {
        if (writer == rank) bytes += bytes_held(info_of(tensors, param, state), state);
    });
    return bytes;
}

HostTensors::HostTensors(const TrainedTensors& tensors, const Gatherer& gatherer)
    : table_(tensors.storage().table()),
      has_weights_(has_weights(tensors.states)),
      replica_(tensors.replica),
      memory_(lay_out(tensors, gatherer)) {}

std::size_t HostTensors::lay_out(const TrainedTensors& tensors, const Gatherer& gatherer) {
    std::size_t bytes = 0;
    for_saved(tensors, gatherer.ranks(), [&](int writer, int unit, int param, const OptimizerState* state, int sum) {
        if (writer != gatherer.rank()) return;
        const ParamInfo& info = info_of(tensors, param, state);
        held_.push_back({unit, &info, state, sum, bytes});
        bytes += bytes_held(info, state);
    });
    return bytes;
}

template <class T>
std::span<T> HostTensors::values_of(const Held& held) const {
    return {reinterpret_cast<T*>(memory_.values().data() + held.offset),
            static_cast<std::size_t>(held.info->tensor.elements())};
}

void HostTensors::fill(const TrainedTensors& tensors, const Gatherer& gatherer) {
    std::size_t next = 0;   // index into held_
    for_saved(tensors, gatherer.ranks(), [&](int writer, int, int param, const OptimizerState* state, int sum) {
        const Held* const held = writer == gatherer.rank() ? &held_[next++] : nullptr;
        auto gather = [&]<class T>(const ModelState<T>& values, bool only_owned) {
            gatherer.gather_into(held ? values_of<T>(*held) : std::span<T>(), values, param, writer, only_owned);
        };
        if (state == nullptr) return gather(tensors.parameters, false);
        with_gradient_type<bf16>(state->type, [&]<class T> {
            gather(state->values.as<T>(), sum < 0);   // values of the writer's sum, or of the owners
        });
    });
    gatherer.wait();
}

void HostTensors::write(CheckpointWriter& checkpoint) const {
    auto first = held_.begin();
    while (first != held_.end()) {
        const auto past = std::find_if(
            first, held_.end(), [&](const Held& held) { return held.unit != first->unit || held.sum != first->sum; });
        write_unit(checkpoint, {first, past});
        first = past;
    }
}

// Writes the model file and the optimizer file of one unit, or the file of a data-parallel rank or group.
void HostTensors::write_unit(CheckpointWriter& checkpoint, std::span<const Held> unit) const {
    auto is_parameter = [](const Held& held) { return held.state == nullptr; };
    auto is_exact = [&](const Held& held) { return !is_parameter(held) || !has_weights_; };
    std::vector<TensorEntry> parameters, exact;
    for (const Held& held : unit) {
        const ParamInfo& info = *held.info;
        if (is_parameter(held)) std::ranges::move(hugging_face_entries(table_, info), std::back_inserter(parameters));
        if (!is_exact(held)) continue;
        exact.push_back({(is_parameter(held) ? "parameter" : held.state->name) + "." + info.name,
                         is_parameter(held) ? parameter_type : type_of(*held.state), info.file_shape(false)});
    }
    const int number = unit.front().unit, sum = unit.front().sum;
    if (replica_ == 0 && sum < 0) {
        SafetensorsWriter model = checkpoint.create(unit_file("model", table_, number), parameters, {{"format", "pt"}});
        for (const Held& held : unit) {
            if (is_parameter(held)) write_hugging_face(model, table_, *held.info, values_of<const floatX>(held));
        }
        model.finish();
    }
    SafetensorsWriter optimizer = checkpoint.create(
        sum < 0 ? unit_file("optimizer", table_, number, replica_) : file_of_sum(table_, number, sum), exact, {});
    for (const Held& held : unit) {
        const auto count = static_cast<std::size_t>(held.info->exported_elements());
        if (!is_parameter(held)) {
            with_gradient_type<bf16>(held.state->type,
                                     [&]<class T> { optimizer.write_values(values_of<const T>(held).first(count)); });
        } else if (!has_weights_) {
            optimizer.write_values(values_of<const floatX>(held).first(count));
        }
    }
    optimizer.finish();
}

namespace {

class SavedState : public WeightSource {
public:
    SavedState(const FileSystem& files, const std::string& folder, const std::string& state)
        : files_(files), folder_(folder), state_(state), table_(hugging_face_model_config(files, folder)) {
        for (int unit = 0; unit < table_.units(); unit++) {
            const std::string path = folder + "/" + unit_file("optimizer", table_, unit);
            if (!files.exists(path)) missing();
            units_.push_back(std::make_unique<SafetensorsFile>(files, path));
        }
        for (const ParamInfo& info : table_.all()) {
            const TensorEntry* const entry = find(info);
            if (entry == nullptr) missing();
            if (entry->shape == info.file_shape(false) && entry->type == TensorType::F32) continue;
            throw Error(ErrorKind::bad_data,
                        text(file_with(info).path(), ": ", entry->name, " has another shape or type than the model's"));
        }
    }

    const ModelConfig& config() const override { return table_.config(); }
    std::string description() const override { return text("the ", state_, " of ", folder_); }
    DType type() const override { return DType::fp32; }
    std::vector<float> read(const ParamInfo& param) const override {
        const ParamInfo& info = table_[table_.index(param.name)];
        std::vector<float> values = file_with(info).read_as<float>(*find(info));
        values.resize(static_cast<std::size_t>(info.tensor.elements()), 0.0f);   // rows that pad the vocabulary
        return values;
    }

    std::vector<float> router_bias() const override { return read_router_bias(files_, folder_, table_.config()); }

private:
    const SafetensorsFile& file_with(const ParamInfo& info) const {
        return *units_[static_cast<std::size_t>(info.unit)];
    }
    const TensorEntry* find(const ParamInfo& info) const { return file_with(info).find(state_ + "." + info.name); }
    [[noreturn]] void missing() const {
        throw Error(ErrorKind::bad_data, text("--weights ", state_, ": ", folder_, " holds no average of the weights"),
                    "Checkpoints of a run with --ema do; leave --weights out for the weights themselves.");
    }

    const FileSystem& files_;
    std::string folder_, state_;
    ParamTable table_;
    std::vector<std::unique_ptr<SafetensorsFile>> units_;
};

}   // namespace

std::unique_ptr<WeightSource> open_saved_state(const FileSystem& files, const std::string& folder,
                                               const std::string& state) {
    return std::make_unique<SavedState>(files, folder, state);
}

bool holds_state(const FileSystem& files, const std::string& folder, const ParamTable& table,
                 const std::string& state) {
    const ParamInfo& info = table[table.unit_params(0).front()];
    return SafetensorsFile(files, folder + "/" + unit_file("optimizer", table, info.unit))
               .find(state + "." + info.name) != nullptr;
}

std::vector<std::string> about_types(const FileSystem& files, const std::string& folder,
                                     const TrainedTensors& tensors) {
    const ParamTable& table = tensors.storage().table();
    const ParamInfo& info = table[table.unit_params(0).front()];
    const SafetensorsFile file(files, folder + "/" + unit_file("optimizer", table, info.unit));
    std::vector<std::string> words;
    for (const OptimizerState& state : tensors.states) {
        const TensorEntry* const entry = file.find(state.name + "." + info.name);
        if (entry == nullptr || bytes_of(entry->type) == size_of(state.type)) continue;
        words.push_back(text(state.name, " was saved in ", entry->type == TensorType::F32 ? "fp32" : "bf16",
                             " and is kept in ", name_of(state.type), " from here on"));
    }
    return words;
}

bool holds_whole_state(const FileSystem& files, const std::string& folder, const OptimizerState& state) {
    const ParamTable& table = state.storage->table();
    std::optional<SafetensorsFile> file;
    int unit = -1;   // whose file is open
    return std::ranges::all_of(state.storage->tensors(), [&](const TensorLayout& place) {
        const ParamInfo& info = table[place.param];
        if (info.unit != unit) file.emplace(files, folder + "/" + unit_file("optimizer", table, info.unit));
        unit = info.unit;
        const TensorEntry* const entry = file->find(state.name + "." + info.name);
        return entry != nullptr && entry->shape == info.file_shape(false);
    });
}

int tensors_not_taken(const FileSystem& files, const std::string& folder, const ParamTable& table,
                      const OptimizerStateSpec& state) {
    int count = 0;
    for (int unit = 0; unit < table.units(); unit++) {
        const std::string name = folder + "/" + file_of_sum(table, unit, 0);
        if (!files.exists(name)) continue;
        const SafetensorsFile file(files, name);
        for (const int param : table.unit_params(unit)) {
            const ParamInfo& info = table[param];
            if (file.find(state.name + "." + info.name) != nullptr && !state.keeps(info)) count++;
        }
    }
    return count;
}

int saved_sums(const FileSystem& files, const std::string& folder, const ParamTable& table) {
    auto has_any = [&](int sum) {   // a unit without such states has no file
        for (int unit = 0; unit < table.units(); unit++) {
            if (files.exists(folder + "/" + file_of_sum(table, unit, sum))) return true;
        }
        return false;
    };
    int sums = 0;
    while (has_any(sums)) sums++;
    return sums;
}

void read_tensors(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors,
                  cudaStream_t stream, bool only_weights) {
    const ParamStorage& storage = tensors.storage();
    const ParamTable& table = storage.table();
    for (const OptimizerState& state : tensors.states) {
        if (state.optional) state.values.zero(stream);
    }
    const MeshShape& mesh = storage.place().mesh;
    const bool as_many = saved_sums(files, folder, table) == compressed_sums(mesh);
    std::optional<SafetensorsFile> first, of_replica, of_sum;   // first: the first replica's; the rest this one's
    int unit = -1;                                              // unit whose files are open
    for (const TensorLayout& place : storage.tensors()) {
        const ParamInfo& info = table[place.param];
        if (info.unit != unit) {
            const std::string name = folder + "/" + unit_file("optimizer", table, info.unit, tensors.replica);
            first.emplace(files, folder + "/" + unit_file("optimizer", table, info.unit));
            of_replica.reset();   // a replica that the run did not have begins as the first one
            if (tensors.replica > 0 && files.exists(name)) of_replica.emplace(files, name);
            const AxisSet sums = compresses_between_groups(mesh) ? replica_axes : zero_axes;
            const std::string own =
                folder + "/" + file_of_sum(table, info.unit, group_rank(mesh, storage.place().at, sums));
            of_sum.reset();
            if (as_many && files.exists(own)) of_sum.emplace(files, own);
        }
        unit = info.unit;
        const SafetensorsFile& file = of_replica ? *of_replica : *first;
        if (const bool saved = saved_masters(file, info) != nullptr; saved != has_masters(tensors.states)) {
            throw Error(ErrorKind::bad_data,
                        text(folder, ": the run was saved ", saved ? "with" : "without", " master weights"),
                        text("Resume it with --master-weights ", saved ? "1 or compact." : "0."));
        }
        // reads elements of type Saved into a state of type Kept
        auto read = [&]<class Saved, class Kept>(const SafetensorsFile& from, const std::string& name,
                                                 const ModelState<Kept>& state, const TensorLayout& layout) {
            SavedPart<Saved>(from, name, state.storage(), layout, state.state())
                .each([&](std::int64_t begin, const std::vector<Saved>& values) {
                    const std::vector<Kept> kept(values.begin(), values.end());
                    upload_slice<Kept>(state, layout, begin, kept, stream);
                });
        };
        if (!has_masters(tensors.states)) {
            read.template operator()<floatX>(file, "parameter", tensors.parameters, place);
        }
        for (const OptimizerState& state : tensors.states) {
            const TensorLayout* const kept = state.find(place.param);
            if (kept == nullptr || (state.of_sum && !of_sum)) continue;
            const SafetensorsFile& from = state.of_sum ? *of_sum : state.outer ? *first : file;
            const TensorEntry* const entry = from.find(state.name + "." + info.name);
            const bool fits =   // else of another layout or rank
                state.shape == nullptr ||
                (entry && entry->shape == state.storage->table()[place.param].file_shape(false));
            const bool is_saved = (!only_weights || (state.outer && state.averages)) && entry != nullptr && fits;
            if (state.is_weights || state.is_lower_half) {
                read_masters(file, tensors, state, place, stream);
            } else if (state.averages && !is_saved) {   // the average starts from the weights
                read_average(from, state, *kept, stream);
            } else if (is_saved || (!only_weights && !state.optional)) {
                const DType saved = entry && entry->type == TensorType::BF16 ? DType::bf16 : DType::fp32;
                with_gradient_type<bf16>(saved, [&]<class Saved> {
                    with_gradient_type<bf16>(state.type, [&]<class Kept> {
                        read.template operator()<Saved>(from, state.name, state.values.as<Kept>(), *kept);
                    });
                });
            }
        }
    }
}
