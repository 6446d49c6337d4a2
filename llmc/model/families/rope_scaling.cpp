#include "llmc/model/families/rope_scaling.h"

#include <algorithm>
#include <cmath>
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
constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";   // an OLMo 3's objects
constexpr double kOlmo3Theta = 500000;                                             // unless the file says one

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
        model_fields(), [&](const ModelField& field) { return !field.of_scalings.empty() && key == field.llama_key; });
}

// Returns the scaling of the object's type. An object of the type "default", or of none, scales nothing.
RopeScaling scaling_of(const Json& object, const char* name, const std::string& path) {
    const Json* type = object.find("rope_type");
    if (type == nullptr) type = object.find("type");   // its name in older files
    if (type == nullptr || *type == Json("default")) return RopeScaling::none;
    ModelConfig read;
    for (const ModelField& field : model_fields()) {
        const bool is_type = field.name == std::string_view("rope-scaling");
        if (is_type && type->is_text() && field.read(read, type->as_text()) && read.rope_scaling != RopeScaling::none) {
            return read.rope_scaling;
        }
    }
    bad(path, text("\"", name, "\" is of the type ", quoted(*type),
                   ", only \"default\", \"linear\", \"llama3\" and \"yarn\" are supported"));
}

// Returns a number of a YaRN's object, or 0 where it is not there or null.
double number_in(const Json& object, const char* key, const char* name, const std::string& path) {
    const Json* const value = object.find(key);
    if (value == nullptr || value->is_null()) return 0;
    try {
        return value->as_number();
    } catch (const JsonError&) {
        bad(path, text("\"", key, "\" of \"", name, "\" is ", quoted(*value), ", expected a number"));
    }
}

// Adds YaRN's factor on queries and keys where "mscale" and "mscale_all_dim" say it in place of "attention_factor".
void add_attention_factor(Json& flat, const Json& object, const char* name, const std::string& path) {
    const double mscale = number_in(object, "mscale", name, path),
                 of_all = number_in(object, "mscale_all_dim", name, path),
                 factor = number_in(object, "factor", name, path);
    if (flat.contains("attention_factor") || mscale == 0 || of_all == 0) return;
    auto scale = [&](double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1; };
    flat.add("attention_factor", scale(mscale) / scale(of_all));
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
    const RopeScaling scaling = scaling_of(*object, name, path);
    if (scaling == RopeScaling::none) return flat;
    const Json* const share = object->find("partial_rotary_factor");
    if (share != nullptr && *share != Json(1)) {
        bad(path, text("\"partial_rotary_factor\" of \"", name, "\" is ", quoted(*share), ", only 1 is supported"));
    }
    const bool yarn = scaling == RopeScaling::yarn;
    const Json* const truncate = object->find("truncate");
    if (yarn && truncate != nullptr && *truncate != Json(true)) {
        bad(path, text("\"truncate\" of \"", name, "\" is ", quoted(*truncate), ", only true is supported"));
    }
    ModelConfig scaled;
    scaled.rope_scaling = scaling;
    for (const ModelField& field : model_fields()) {
        if (!field.is_of(scaling)) continue;
        const std::string key = field.llama_key;
        const Json* value = object->find(key);
        if (key == "rope_type") {
            flat.add(key, field.value_of(scaled));
        } else if (key == kOriginalLength) {
            const Json* const outside = json.find(key);
            if (outside != nullptr || value == nullptr) value = outside;
            if (value == nullptr) value = json.find("max_position_embeddings");
            if (value != nullptr) flat.add(key, *value);
        } else if (yarn && key != "factor" && (value == nullptr || value->is_null())) {
            continue;   // its default
        } else if (value == nullptr) {
            bad(path,
                text("\"", key, "\" of \"", name, "\" is not there, ", flat.find("rope_type")->as_text(), " needs it"));
        } else {
            flat.add(key, *value);
        }
    }
    if (yarn) add_attention_factor(flat, *object, name, path);
    return flat;
}

Json with_rope_by_layer_flat(const Json& json, const std::string& path) {
    auto object_in = [&](const Json& from, const char* key) {
        const Json* const found = from.find(key);
        if (found == nullptr || found->is_null()) return Json::object();
        if (!found->is_object()) bad(path, text("\"", key, "\" is ", quoted(*found), ", expected an object"));
        return *found;
    };
    const Json parameters = object_in(json, "rope_parameters"), outside = object_in(json, "rope_scaling");
    Json sliding = object_in(parameters, kSliding), full = Json::object();
    const Json* const theta = json.find("rope_theta");
    for (const Json& from : {outside, object_in(parameters, kFull)}) {   // the first that has a key counts
        for (const auto& [key, value] : from.members()) full.add(key, value);
    }
    if (parameters.members().empty()) full.add("rope_type", "default");   // before a "type"
    full.add("rope_theta", theta != nullptr ? *theta : Json(kOlmo3Theta));
    sliding.add("rope_theta", kOlmo3Theta);
    const Json* const window = json.find("sliding_window");
    const bool slides = window == nullptr || !window->is_null(),   // some layer does
        scales = slides && scaling_of(sliding, kSliding, path) != RopeScaling::none;
    if (scales && sliding != full) {
        bad(path, text("\"", kSliding, "\" of \"rope_parameters\" has another scaling than \"", kFull,
                       "\", only \"default\" is supported"));
    }
    const bool differs =
        slides && !scales &&
        (*sliding.find("rope_theta") != *full.find("rope_theta") || scaling_of(full, kFull, path) != RopeScaling::none);
    Json flat = Json::object();
    for (const auto& [key, value] : json.members()) {
        if (key != "rope_parameters" && key != "rope_scaling" && key != "rope_theta") flat.add(key, value);
    }
    flat.add("rope_scaling", full);
    if (differs) flat.add("rope_window_theta", *sliding.find("rope_theta"));
    return flat;
}

Json rope_scaling_json(const ModelConfig& config) {
    Json json = Json::object();
    for (const ModelField& field : model_fields()) {
        if (!field.is_of(config.rope_scaling)) continue;
        const double value = field.get(config);
        if (value == 0) continue;   // YaRN's default of the factor on queries and keys
        json.add(field.llama_key, !field.is_number() ? Json(field.value_of(config))
                                  : field.whole      ? Json(static_cast<std::int64_t>(value))
                                                     : Json(value));
    }
    return json;
}

Json rope_by_layer_json(const ModelConfig& config) {
    Json full =
        config.rope_scaling == RopeScaling::none ? Json::object({{"rope_type", "default"}}) : rope_scaling_json(config);
    full.add("rope_theta", config.rope_theta);
    const Json own = Json::object({{"rope_type", "default"}, {"rope_theta", config.rope_window_theta}});
    return Json::object({{kFull, full}, {kSliding, config.rope_window_theta > 0 ? own : full}});
}
