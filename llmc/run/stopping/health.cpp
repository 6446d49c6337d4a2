#include "llmc/run/stopping/health.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/io/hash.h"

namespace {

constexpr std::size_t slice_elements = std::size_t{1} << 20;   // elements on the host at once

// Returns this rank's part of a tensor, on the device.
template <class T>
std::span<const T> kept(const ModelState<T>& state, const TensorLayout& place) {
    const auto begin = static_cast<std::size_t>(state.storage().tensor_offset(place, state.state()));
    const auto count = static_cast<std::size_t>(state.storage().padded_elements(place, state.state()));
    return {state.unit(place.slot).data() + begin, count};
}

// Copies values from the device slice by slice, and calls use(slice) with each.
template <class T, class Use>
void download_slices(std::span<const T> values, cudaStream_t stream, Use&& use) {
    std::vector<T> slice;
    for (; !values.empty(); values = values.subspan(slice.size())) {
        slice.resize(std::min(slice_elements, values.size()));
        copy_to_host(slice.data(), values.data(), slice.size() * sizeof(T), stream);
        wait_for(stream);
        use(slice);
    }
}

template <class T>
std::ptrdiff_t not_finite(std::span<const T> values, cudaStream_t stream) {
    std::ptrdiff_t found = 0;
    download_slices(values, stream, [&](const std::vector<T>& slice) {
        found += std::ranges::count_if(slice, [](T value) { return !std::isfinite(static_cast<float>(value)); });
    });
    return found;
}

std::string of_layer(int layer) { return layer < 0 ? "" : text(" of layer ", layer); }

// Findings carry their place in the order of a step, so that the earliest of all ranks can be named: parameters first,
// by unit; then activations, of which a unit shows fewer than this; then gradients, from the last unit back.
constexpr int kActivationsOfUnit = 16;

template <class T>
std::string first_of(const ModelState<T>& state, const char* what, bool backwards, cudaStream_t stream) {
    const ParamTable& table = state.storage().table();
    std::vector<TensorLayout> places(state.storage().tensors().begin(), state.storage().tensors().end());
    auto order = [&](const TensorLayout& place) {
        const int index = table[place.param].unit * table.size() + place.param;
        return backwards ? INT_MAX - index : index;
    };
    std::sort(places.begin(), places.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
    for (const TensorLayout& place : places) {
        const std::ptrdiff_t found = not_finite(kept(state, place), stream);
        if (found == 0) continue;
        const ParamInfo& info = table[place.param];
        return text(order(place), " ", what, " ", info.name, of_layer(info.layer), " (", found, " values)");
    }
    return "";
}

// Hashes of a group's parts and of their contents, by group.
using GroupHashes = std::map<std::string, std::pair<Hash64, Hash64>>;

std::string group_of(const std::string& what, const TensorSpec& tensor) {
    constexpr const char* cuts[] = {"uncut", "column_parallel", "row_parallel", "vocabulary", "experts"};
    return text(what, " ", tensor.tied ? "tied_" : "", cuts[static_cast<int>(tensor.cut)]);
}

// Adds the hashes of this rank's copy of each tensor: which part it is, and its content. `part_of`: the part that is
// kept, or that is owned.
template <class T>
void add_hashes(std::string& lines, GroupHashes& groups, const std::string& what, const ModelState<T>& state,
                StateKind part_of, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    for (const TensorLayout& place : storage.tensors()) {
        const std::vector<OwnedRange> ranges = storage.exported_ranges(place, part_of);
        if (ranges.empty()) continue;   // padding
        Hash64 part, content;
        for (const OwnedRange& range : ranges) {
            for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                const std::int64_t run[] = {global, local, count};
                part.update(run, sizeof run);
            });
        }
        const T* const begin = part_of == state.state() ? state.tensor(place.param) : state.owned(place.param);
        const auto count = static_cast<std::size_t>(storage.padded_elements(place, part_of));
        download_slices(std::span(begin, count), stream, [&](const std::vector<T>& values) {
            content.update(values.data(), values.size() * sizeof(T));
        });
        const ParamInfo& info = storage.table()[place.param];
        auto& [group_part, group_content] = groups[group_of(what, info.tensor)];
        const std::string part_text = info.name + " " + hash_to_text(part.digest()),
                          content_text = hash_to_text(content.digest());
        group_part.update(part_text.data(), part_text.size());
        group_content.update(content_text.data(), content_text.size());
        lines += text(what, " ", part_text, " ", content_text, "\n");
    }
}

std::string list(const std::vector<std::size_t>& ranks) {
    std::string result;
    for (std::size_t rank : ranks) result += text(result.empty() ? "" : ", ", rank);
    return text(ranks.size() > 1 ? "ranks " : "rank ", result);
}

}   // namespace

std::string first_not_finite(const TrainedTensors& tensors, const Gradients& gradients, cudaStream_t stream,
                             const std::string& activation) {
    const std::string parameter = first_of(tensors.parameters, "parameter", false, stream);
    if (!parameter.empty()) return parameter;
    if (!activation.empty()) return activation;
    return with_gradient_type<floatX>(
        gradients.type(), [&]<class G> { return first_of(gradients.kept().as<G>(), "the gradient of", true, stream); });
}

std::string first_not_finite_activation(Step& step, const Pipeline::Read& read, int micro_batches) {
    Stage& stage = step.stage();
    const ParamTable& table = stage.table();
    const int behind_parameters = table.units() * table.size();
    int last_unit = -1, place = 0, first = INT_MAX;   // index of an activation in its unit
    std::string result;
    auto look = [&](int unit, const char* name, const auto* values, std::int64_t count) {
        place = unit == std::exchange(last_unit, unit) ? place + 1 : 0;
        ENSURE(place < kActivationsOfUnit, "activation ", place, " of unit ", unit);
        const int order = behind_parameters + kActivationsOfUnit * unit + place;
        if (order >= first) return;
        const std::ptrdiff_t found = not_finite(std::span(values, static_cast<std::size_t>(count)), stage.stream());
        if (found == 0) return;
        first = order;
        const int layer = table.is_layer(unit) ? unit - table.layer_unit(0) : -1;
        result = text(order, " activation ", name, of_layer(layer), " (", found, " values)");
    };
    const struct Showing {
        Stage& stage;
        ~Showing() { stage.show_activations({}); }
    } showing{stage};
    stage.show_activations(look);
    for (int i = 0; i < micro_batches; i++) {
        last_unit = -1;
        step.forward([&](int, const MicroBatch& to) { read(i, to); }, Purpose::loss);
        if (stage.has_head()) look(table.head_unit(), "losses", stage.losses(), stage.tokens());
    }
    return result;
}

std::string earliest(const std::vector<std::string>& by_rank) {
    long first = LONG_MAX;
    std::string result = "no parameter, activation or gradient has such a value";
    for (std::size_t rank = 0; rank < by_rank.size(); rank++) {
        char* end = nullptr;
        const long order = std::strtol(by_rank[rank].c_str(), &end, 10);
        if (by_rank[rank].empty() || order >= first) continue;
        first = order;
        result = text("first in", end, by_rank.size() > 1 ? text(", on rank ", rank) : std::string());
    }
    return result;
}

ReplicaHashes replica_hashes(const TrainedTensors& tensors, cudaStream_t stream) {
    ReplicaHashes result;
    GroupHashes groups;
    auto add = [&](const std::string& what, const auto& state, StateKind part) {
        add_hashes(result.tensors, groups, what, state, part, stream);
    };
    const std::string whose = tensors.replica > 0 ? text("replica_", tensors.replica, ".") : "";   // others differ
    add(whose + "parameter", tensors.parameters, tensors.parameters.state());
    for (const OptimizerState& state : tensors.states) {
        if (state.of_sum) continue;   // no two should have the same
        with_gradient_type<bf16>(state.type, [&]<class T> {
            add(state.outer ? state.name : whose + state.name, state.values.as<T>(),
                state.delayed ? StateKind::optimizer : state.values.state());
        });
    }
    for (const auto& [name, hashes] : groups) {
        result.groups +=
            text(name, " ", hash_to_text(hashes.first.digest()), " ", hash_to_text(hashes.second.digest()), "\n");
    }
    return result;
}

std::string differing_replicas(const std::vector<std::string>& by_rank) {
    std::map<std::string, std::map<std::string, std::vector<std::size_t>>> copies;   // ranks by hash, by part
    for (std::size_t rank = 0; rank < by_rank.size(); rank++) {
        std::istringstream lines(by_rank[rank]);
        for (std::string what, name, part, hash; lines >> what >> name >> part >> hash;) {
            copies[text(what, " ", name, " ", part)][hash].push_back(rank);
        }
    }
    std::string result;
    int more = -1;   // differences besides the reported one
    for (const auto& [part, by_hash] : copies) {
        if (by_hash.size() == 1 || more++ >= 0) continue;
        std::vector<std::size_t> all, most;
        for (const auto& [hash, ranks] : by_hash) {
            all.insert(all.end(), ranks.begin(), ranks.end());
            if (ranks.size() > most.size()) most = ranks;
        }
        std::sort(all.begin(), all.end());
        std::vector<std::size_t> others;
        std::set_difference(all.begin(), all.end(), most.begin(), most.end(), std::back_inserter(others));
        const std::string name = part.substr(0, part.rfind(' '));
        result = 2 * most.size() > all.size()
                     ? text(list(others), " has another ", name, " than ", list(most))
                     : text(list(all), " should have the same ", name, ", and nothing tells which is right");
    }
    if (more > 0) result += text("; ", more, " more differ");
    return result;
}

void check_replicas(int step, const TrainedTensors& tensors, cudaStream_t stream, Agreement& agreement) {
    const ReplicaHashes hashes = replica_hashes(tensors, stream);
    if (differing_replicas(agreement.gather(hashes.groups)).empty()) return;
    const std::string differs = differing_replicas(agreement.gather(hashes.tensors));
    throw Error(ErrorKind::resumable, text("--check-replicas: after step ", step, " ", differs),
                "A device or its memory may be faulty. Resume from a checkpoint, without that device if you can.");
}
