#include "llmc/model/families/rope_scaling.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"

namespace {

[[noreturn]] void bad(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": ", what));
}

constexpr const char* kOriginalLength = "original_max_position_embeddings";

// Returns the object and its name, or null where there is none.
std::pair<const char*, const Json*> find_object(const Json& json, const std::string& path) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const Json* const found = json.find(name);
        if (found == nullptr || found->is_null()) continue;
        if (!found->is_object()) bad(path, text("\"", name, "\" is ", quoted(*found), ", expected an object"));
        if (!found->members().empty()) return {name, found};
    }
    return {nullptr, nullptr};
}

// True for a key that a model's fields have inside the object: outside it means nothing.
bool is_inside(std::string_view key) {
    return std::ranges::any_of(
        model_fields(), [&](const ModelField& field) { return field.in_rope_scaling && key == field.llama_key; });
}

// Returns the name of --rope-scaling for the object's type. An object of the type "default", or of none, scales
// nothing.
const char* scaling_of(const Json& object, const char* name, const std::string& path) {
    const Json* type = object.find("rope_type");
    if (type == nullptr) type = object.find("type");   // its name in older files
    if (type == nullptr || *type == Json("default")) return "none";
    for (const char* known : {"linear", "llama3"}) {
        if (*type == Json(known)) return known;
    }
    bad(path, text("\"", name, "\" is of the type ", quoted(*type),
                   ", only \"default\", \"linear\" and \"llama3\" are supported"));
}

}   // namespace

Json with_rope_scaling_flat(const Json& json, const std::string& path) {
    const auto found = find_object(json, path);
    const char* const name = found.first;
    const Json* const object = found.second;
    const Json* const inner_theta = object != nullptr ? object->find("rope_theta") : nullptr;
    Json flat = Json::object();
    for (const auto& [key, value] : json.members()) {
        if (!is_inside(key) && (key != "rope_theta" || inner_theta == nullptr)) flat.add(key, value);
    }
    if (object == nullptr) return flat;
    if (inner_theta != nullptr) flat.add("rope_theta", *inner_theta);
    for (const auto& [key, value] : object->members()) {
        if (value.is_object()) {
            bad(path, text("\"", name, "\" says \"", key, "\" apart, only one for all layers is supported"));
        }
    }
    const std::string_view scaling = scaling_of(*object, name, path);
    if (scaling == "none") return flat;
    flat.add("rope_type", std::string(scaling));
    const Json* const share = object->find("partial_rotary_factor");
    if (share != nullptr && *share != Json(1)) {
        bad(path, text("\"partial_rotary_factor\" of \"", name, "\" is ", quoted(*share), ", only 1 is supported"));
    }
    auto add = [&](const char* key) {
        const Json* const value = object->find(key);
        if (value == nullptr) bad(path, text("\"", key, "\" of \"", name, "\" is not there, ", scaling, " needs it"));
        flat.add(key, *value);
    };
    add("factor");
    if (scaling == "linear") return flat;
    add("low_freq_factor");
    add("high_freq_factor");
    const Json* length = json.find(kOriginalLength);
    if (length == nullptr) length = object->find(kOriginalLength);
    if (length == nullptr) length = json.find("max_position_embeddings");
    if (length != nullptr) flat.add(kOriginalLength, *length);
    return flat;
}

Json rope_scaling_json(const ModelConfig& config) {
    const bool by_wavelength = config.rope_scaling == RopeScaling::llama3;
    Json json = Json::object();
    for (const ModelField& field : model_fields()) {
        if (!field.in_rope_scaling) continue;
        const std::string_view key = field.llama_key;
        const bool of_all = key == "rope_type" || key == "factor";   // the others are of llama3
        const double value = field.get(config);
        if (!of_all && !by_wavelength) continue;
        json.add(field.llama_key, !field.is_number() ? Json(field.value_of(config))
                                  : field.whole      ? Json(static_cast<std::int64_t>(value))
                                                     : Json(value));
    }
    return json;
}
