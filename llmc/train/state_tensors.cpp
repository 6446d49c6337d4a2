#include "llmc/train/state_tensors.h"

#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/io/safetensors.h"
#include "llmc/train/model_export.h"

namespace {

constexpr std::int64_t piece_elements = 1 << 20;   // that are converted or read at once

std::string unit_file(const char* kind, const ParamTable& table, int unit) {
    return formatted("%s-%05d-of-%05d.safetensors", kind, unit + 1, table.units());
}

// The exact state in the order of its file.
struct ExactState {
    std::string prefix;
    TensorType type;
    const ModelState<float>* state;   // null: the parameters themselves
};
std::vector<ExactState> exact_states(const TrainedTensors& tensors) {
    return {tensors.masters ? ExactState{"master.", TensorType::F32, tensors.masters}
                            : ExactState{"parameter.", parameter_type, nullptr},
            {"m.", TensorType::F32, &tensors.m},
            {"v.", TensorType::F32, &tensors.v}};
}

// The two files of a unit, on the rank that writes them. Tensors come in the order of exact_states.
class UnitWriter {
public:
    UnitWriter(CheckpointWriter& checkpoint, const TrainedTensors& tensors, int unit)
        : table_(tensors.storage().table()), has_masters_(tensors.masters != nullptr) {
        std::vector<TensorEntry> parameters, exact;
        for (int param : table_.unit_params(unit)) parameters.push_back(hugging_face_entry(table_, table_[param]));
        for (const ExactState& state : exact_states(tensors)) {
            for (int param : table_.unit_params(unit)) {
                exact.push_back({state.prefix + table_[param].name, state.type, table_[param].file_shape(false)});
            }
        }
        model_.emplace(checkpoint.files(), checkpoint.path(unit_file("model", table_, unit)), parameters,
                       TensorMetadata{{"format", "pt"}});
        optimizer_.emplace(checkpoint.files(), checkpoint.path(unit_file("optimizer", table_, unit)), exact,
                           TensorMetadata{});
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
    CUDA_CHECK(cudaStreamSynchronize(stream));   // a copy of them may be kept until then
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

void write_tensors(CheckpointWriter& checkpoint, const TrainedTensors& tensors, const Gatherer& gatherer) {
    const ParamTable& table = tensors.storage().table();
    const std::vector<UnitPlace>& units = tensors.storage().units();
    std::vector<const ModelState<float>*> states;   // besides the parameters
    for (const ExactState& state : exact_states(tensors)) {
        if (state.state != nullptr) states.push_back(state.state);
    }
    const std::size_t ranks = static_cast<std::size_t>(gatherer.ranks()),
                      own = static_cast<std::size_t>(gatherer.rank());
    // as many units at a time as there are ranks: each rank gets a tensor of its unit, then all of them write
    for (std::size_t first = 0; first < units.size(); first += ranks) {
        const std::size_t writers = std::min(ranks, units.size() - first);
        std::vector<std::vector<int>> params;
        std::size_t items = 0;   // tensors of the longest unit, of all states
        for (std::size_t i = 0; i < writers; i++) {
            params.push_back(table.unit_params(units[first + i].unit));
            items = std::max(items, params.back().size() * (1 + states.size()));
        }
        std::optional<UnitWriter> writer;
        if (own < writers) checkpoint.attempt([&] { writer.emplace(checkpoint, tensors, units[first + own].unit); });
        for (std::size_t item = 0; item < items; item++) {
            int param = -1;   // of the values that this rank gets
            std::vector<floatX> parameter;
            std::vector<float> state;
            for (std::size_t i = 0; i < writers; i++) {
                const std::size_t which = item / params[i].size();   // the parameters, then each state
                if (which > states.size()) continue;
                const int next = params[i][item % params[i].size()], to = static_cast<int>(i);
                if (i == own) param = next;
                if (which == 0) {
                    auto values = gatherer.gather(tensors.parameters, next, to);
                    if (i == own) parameter = std::move(values);
                } else {
                    auto values = gatherer.gather(*states[which - 1], next, to);
                    if (i == own) state = std::move(values);
                }
            }
            if (param < 0) continue;
            const auto alone = gatherer.works_alone();
            checkpoint.attempt([&] {
                if (!parameter.empty()) writer->parameter(param, parameter);
                if (!state.empty()) writer->state(param, state);
            });
        }
        const auto alone = gatherer.works_alone();
        if (writer) checkpoint.attempt([&] { writer->finish(); });
    }
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
