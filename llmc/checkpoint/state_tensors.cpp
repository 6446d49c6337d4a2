#include "llmc/checkpoint/state_tensors.h"

#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/io/safetensors.h"

namespace {

constexpr std::int64_t piece_elements = 1 << 20;   // that are converted or read at once

std::string unit_file(const char* kind, const ParamTable& table, int unit) {
    return formatted("%s-%05d-of-%05d.safetensors", kind, unit + 1, table.units());
}

// The exact state in the order of its file, after the parameters where those are a part of it.
std::vector<const ModelState<float>*> exact_states(const TrainedTensors& tensors) {
    if (tensors.masters == nullptr) return {&tensors.m, &tensors.v};
    return {tensors.masters, &tensors.m, &tensors.v};
}

// The two files of a unit, on the rank that writes them. The parameters come first, then each of exact_states.
class UnitWriter {
public:
    UnitWriter(CheckpointWriter& checkpoint, const ParamTable& table, bool has_masters, int unit)
        : table_(table), has_masters_(has_masters) {
        std::vector<TensorEntry> parameters, exact;
        for (int param : table_.unit_params(unit)) parameters.push_back(hugging_face_entry(table_, table_[param]));
        for (const std::string prefix : {has_masters ? "master." : "parameter.", "m.", "v."}) {
            const TensorType type = prefix == "parameter." ? parameter_type : TensorType::F32;
            for (int param : table_.unit_params(unit)) {
                exact.push_back({prefix + table_[param].name, type, table_[param].file_shape(false)});
            }
        }
        model_.emplace(checkpoint.files(), checkpoint.path(unit_file("model", table_, unit)), parameters,
                       TensorMetadata{{"format", "pt"}});
        optimizer_.emplace(checkpoint.files(), checkpoint.path(unit_file("optimizer", table_, unit)), exact,
                           TensorMetadata{});
        checkpoint.describe(unit_file("model", table_, unit), parameters);
        checkpoint.describe(unit_file("optimizer", table_, unit), exact);
    }

    void parameter(int param, std::span<const floatX> values) {
        const ParamInfo& info = table_[param];
        values = values.first(static_cast<std::size_t>(info.exported_elements()));
        if (!has_masters_) optimizer_->write_values(values);
        if (!info.hf_transposed) return model_->write_values(values);
        const std::int64_t rows = info.exported_rows, cols = info.tensor.cols;
        const std::int64_t strip = std::max<std::int64_t>(1, piece_elements / rows);
        for (std::int64_t first = 0; first < cols; first += strip) {
            const std::vector<floatX> columns = transposed(values, rows, cols, first, std::min(first + strip, cols));
            model_->write_values(std::span(columns));
        }
    }
    void state(int param, std::span<const float> values) {
        optimizer_->write_values(values.first(static_cast<std::size_t>(table_[param].exported_elements())));
    }
    void finish() {
        model_->finish();
        optimizer_->finish();
    }

private:
    const ParamTable& table_;
    bool has_masters_;
    std::optional<SafetensorsWriter> model_, optimizer_;
};

// Reads what this rank stores of a tensor, piece by piece: use(first, values) with local elements from `first` on.
template <class T, class Use>
void read_pieces(const SafetensorsFile& file, const std::string& prefix, const ParamStorage& storage,
                 const TensorPlace& place, StateKind kind, Use&& use) {
    const ParamInfo& info = storage.table()[place.param];
    const TensorEntry& entry = file.entry(prefix + info.name);
    if (entry.shape != info.file_shape(false) || bytes_of(entry.type) != sizeof(T)) {
        throw Error(ErrorKind::bad_data,
                    text(file.path(), ": ", entry.name, " has another shape or type than the model's"));
    }
    const std::vector<OwnedRange> ranges = storage.exported_ranges(place, kind);
    const std::int64_t total = storage.padded_elements(place, kind);
    for (std::int64_t first = 0; first < total; first += piece_elements) {
        const std::int64_t past = std::min(first + piece_elements, total);
        std::vector<T> values(static_cast<std::size_t>(past - first), static_cast<T>(0.0f));
        for (const OwnedRange& range : ranges_within(ranges, first, past)) {
            for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                file.read(entry, static_cast<std::uint64_t>(global) * sizeof(T),
                          std::as_writable_bytes(std::span(values))
                              .subspan(static_cast<std::size_t>(local) * sizeof(T),
                                       static_cast<std::size_t>(count) * sizeof(T)));
            });
        }
        use(first, values);
    }
}

// Values of local elements from `first` on of what a state keeps of a tensor.
template <class T>
void upload_piece(const ModelState<T>& state, const TensorPlace& place, std::int64_t first, std::span<const T> values,
                  cudaStream_t stream) {
    const std::int64_t at = state.storage().tensor_offset(place, state.state()) + first;
    state.unit(place.slot).upload(values, stream, static_cast<std::size_t>(at));
    wait_for(stream);   // a copy of them may be kept until then
}

// Masters, and the parameters that are rounded from them, of which this rank keeps as much or more.
void read_masters(const SafetensorsFile& file, const TrainedTensors& tensors, const TensorPlace& place,
                  cudaStream_t stream) {
    const ParamStorage& storage = tensors.storage();
    const StateKind kept = tensors.parameters.state();
    const std::int64_t owned = storage.owned_offset(place, kept),
                       owned_end = owned + storage.padded_elements(place, StateKind::optimizer);
    read_pieces<float>(file, "master.", storage, place, kept, [&](std::int64_t first, std::span<const float> values) {
        const std::vector<floatX> rounded(values.begin(), values.end());
        upload_piece<floatX>(tensors.parameters, place, first, rounded, stream);
        const std::int64_t from = std::max(first, owned),
                           to = std::min(first + static_cast<std::int64_t>(values.size()), owned_end);
        if (from >= to) return;
        upload_piece<float>(*tensors.masters, place, from - owned,
                            values.subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from)),
                            stream);
    });
}

}   // namespace

std::uint64_t checkpoint_tensor_bytes(const ParamTable& table, bool has_masters) {
    std::uint64_t elements = 0;
    for (const ParamInfo& info : table.all()) elements += static_cast<std::uint64_t>(info.exported_elements());
    const std::size_t exact = has_masters ? sizeof(float) : sizeof(floatX);   // beside the moments
    return elements * (sizeof(floatX) + exact + 2 * sizeof(float));
}

std::string tensor_index(const ParamTable& table) {
    Json names = Json::object();
    std::uint64_t bytes = 0;
    for (const ParamInfo& info : table.all()) {
        const TensorEntry entry = hugging_face_entry(table, info);
        names.add(entry.name, unit_file("model", table, info.unit));
        bytes += entry.bytes();
    }
    const Json metadata = Json::object({{"total_size", bytes}});
    return to_text(Json::object({{"metadata", metadata}, {"weight_map", names}}), 2) + "\n";
}

HostTensors::HostTensors(const TrainedTensors& tensors, const Gatherer& gatherer)
    : table_(tensors.storage().table()),
      has_masters_(tensors.masters != nullptr),
      memory_(lay_out(tensors, gatherer)) {}

std::size_t HostTensors::lay_out(const TrainedTensors& tensors, const Gatherer& gatherer) {
    constexpr std::size_t line = 64;   // bytes; tensors begin at multiples
    const std::vector<UnitPlace>& units = tensors.storage().units();
    const std::size_t states = 1 + exact_states(tensors).size(), ranks = static_cast<std::size_t>(gatherer.ranks());
    std::size_t bytes = 0;
    for (auto i = static_cast<std::size_t>(gatherer.rank()); i < units.size(); i += ranks) {
        Unit& own = own_.emplace_back(Unit{units[i].unit, std::vector<std::vector<Held>>(states)});
        for (std::size_t state = 0; state < states; state++) {
            for (int param : table_.unit_params(own.unit)) {
                own.states[state].push_back({param, bytes});
                const std::size_t size = state == 0 ? sizeof(floatX) : sizeof(float);
                bytes += static_cast<std::size_t>(table_[param].tensor.elements()) * size;
                bytes = (bytes + line - 1) / line * line;
            }
        }
    }
    return bytes;
}

template <class T>
std::span<T> HostTensors::values_of(const Held& held) const {
    return {reinterpret_cast<T*>(memory_.values().data() + held.at),
            static_cast<std::size_t>(table_[held.param].tensor.elements())};
}

void HostTensors::fill(const TrainedTensors& tensors, const Gatherer& gatherer) {
    const std::vector<const ModelState<float>*> states = exact_states(tensors);
    const std::vector<UnitPlace>& units = tensors.storage().units();
    const auto ranks = static_cast<std::size_t>(gatherer.ranks());
    for (std::size_t i = 0; i < units.size(); i++) {
        const int writer = static_cast<int>(i % ranks);
        const Unit* own = writer == gatherer.rank() ? &own_[i / ranks] : nullptr;
        const std::vector<int> params = table_.unit_params(units[i].unit);
        for (std::size_t state = 0; state < 1 + states.size(); state++) {
            for (std::size_t p = 0; p < params.size(); p++) {
                const Held* held = own != nullptr ? &own->states[state][p] : nullptr;
                if (state == 0) {
                    gatherer.gather_into(held ? values_of<floatX>(*held) : std::span<floatX>(), tensors.parameters,
                                         params[p], writer);
                } else {
                    gatherer.gather_into(held ? values_of<float>(*held) : std::span<float>(), *states[state - 1],
                                         params[p], writer);
                }
            }
        }
    }
    gatherer.wait();
}

void HostTensors::write(CheckpointWriter& checkpoint) const {
    checkpoint.attempt([&] {
        for (const Unit& own : own_) {
            UnitWriter writer(checkpoint, table_, has_masters_, own.unit);
            for (const Held& held : own.states[0]) writer.parameter(held.param, values_of<floatX>(held));
            for (std::size_t state = 1; state < own.states.size(); state++) {
                for (const Held& held : own.states[state]) writer.state(held.param, values_of<float>(held));
            }
            writer.finish();
        }
    });
}

void read_tensors(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors,
                  cudaStream_t stream) {
    const ParamStorage& storage = tensors.storage();
    const ParamTable& table = storage.table();
    std::optional<SafetensorsFile> file;
    int unit = -1;   // whose file is open
    for (const TensorPlace& place : storage.tensors()) {
        const ParamInfo& info = table[place.param];
        if (info.unit != unit) file.emplace(files, folder + "/" + unit_file("optimizer", table, info.unit));
        unit = info.unit;
        const bool saved_masters = file->find("master." + info.name) != nullptr;
        if (saved_masters != (tensors.masters != nullptr)) {
            throw Error(ErrorKind::bad_data,
                        text(folder, ": the run was saved ", saved_masters ? "with" : "without", " master weights"),
                        text("Resume it with --master-weights ", saved_masters ? 1 : 0, "."));
        }
        if (tensors.masters != nullptr) {
            read_masters(*file, tensors, place, stream);
        } else {
            read_pieces<floatX>(*file, "parameter.", storage, place, tensors.parameters.state(),
                                [&](std::int64_t first, std::span<const floatX> values) {
                                    upload_piece<floatX>(tensors.parameters, place, first, values, stream);
                                });
        }
        for (const auto& [prefix, state] : {std::pair("m.", &tensors.m), std::pair("v.", &tensors.v)}) {
            read_pieces<float>(*file, prefix, storage, place, state->state(),
                               [&, to = state](std::int64_t first, std::span<const float> values) {
                                   upload_piece<float>(*to, place, first, values, stream);
                               });
        }
    }
}
