#include "llmc/model/families/layer_windows.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/base/error.h"

namespace {

constexpr const char* kSwitch = "use_sliding_window";
constexpr const char* kWindow = "sliding_window";
constexpr const char* kFullLayers = "max_window_layers";
constexpr const char* kTypes = "layer_types";
constexpr const char *kSlides = "sliding_attention", *kSeesAll = "full_attention";
constexpr std::uint64_t kMostLayers = 1 << 24;

[[noreturn]] void bad(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": ", what));
}

bool is_on(const Json& json, const std::string& path) {
    const Json* const value = json.find(kSwitch);
    if (value == nullptr || *value == Json(false)) return false;
    if (*value == Json(true)) return true;
    bad(path, text("\"", kSwitch, "\" is ", quoted(*value), ", expected true or false"));
}

// Returns a whole number of the file, or `otherwise` where it does not say it.
std::size_t whole_in(const Json& json, const std::string& path, const char* key, std::size_t otherwise) {
    const Json* const value = json.find(key);
    if (value == nullptr) return otherwise;
    try {
        return value->as_whole(kMostLayers);
    } catch (const JsonError&) {
        bad(path, text("\"", key, "\" is ", quoted(*value), ", expected a number of layers"));
    }
}

// Returns a letter of --layer-pattern for each layer.
std::string letters_in(const Json& json, const std::string& path, std::size_t layers) {
    const Json* const types = json.find(kTypes);
    if (types == nullptr || types->is_null()) {
        const std::size_t full = std::min(whole_in(json, path, kFullLayers, 28), layers);
        return std::string(full, 'L') + std::string(layers - full, 'S');
    }
    if (!types->is_array() || types->elements().size() != layers) {
        bad(path, text("\"", kTypes, "\" is ", quoted(*types), ", expected the types of ", layers, " layers"));
    }
    std::string letters;
    for (const Json& type : types->elements()) {
        if (type != Json(kSlides) && type != Json(kSeesAll)) {
            bad(path, text("\"", kTypes, "\" has ", quoted(type), ", only \"", kSeesAll, "\" and \"", kSlides,
                           "\" are supported"));
        }
        letters += type == Json(kSlides) ? 'S' : 'L';
    }
    return letters;
}

// Returns the shortest pattern that repeats to these letters; empty where all slide.
std::string pattern_in(const std::string& letters, const std::string& path) {
    if (letters.find('L') == std::string::npos) return "";
    for (std::size_t length = 1; length <= std::min(letters.size(), longest_pattern); length++) {
        if (std::equal(letters.begin() + static_cast<std::ptrdiff_t>(length), letters.end(), letters.begin())) {
            return letters.substr(0, length);
        }
    }
    throw Error(ErrorKind::bad_data,
                text(path, ": the layers that slide, by \"", kTypes, "\" or \"", kFullLayers,
                     "\", repeat in no pattern of at most ", longest_pattern, " layers"),
                text("Set \"", kSwitch, "\" to false: then all layers see all keys."));
}

}   // namespace

Json with_layer_windows_flat(const Json& json, const std::string& path) {
    const Json* const layers = json.find("num_hidden_layers");
    if (layers == nullptr || layers->is_null()) return json;
    const Json *const given = json.find(kWindow), *const types = json.find(kTypes);
    Json window = !is_on(json, path) ? Json(nullptr) : given != nullptr ? *given : Json(4096);
    std::string pattern;
    if (!window.is_null() || (types != nullptr && !types->is_null())) {
        const std::string letters = letters_in(json, path, whole_in(json, path, "num_hidden_layers", 0));
        const bool slides = letters.find('S') != std::string::npos;
        if (slides && window.is_null()) {
            bad(path, text("\"", kTypes, "\" has \"", kSlides, "\", but \"", kSwitch, "\" is not true, or \"", kWindow,
                           "\" is null"));
        }
        if (!slides) window = Json(nullptr);
        if (slides) pattern = pattern_in(letters, path);
    }
    Json flat = Json::object();
    for (const auto& [key, value] : json.members()) {
        if (key != kWindow && key != kTypes) flat.add(key, value);
    }
    flat.add(kWindow, window);
    flat.add(kTypes, pattern);
    return flat;
}

void add_layer_windows(Json& json, const ModelConfig& config) {
    json.add(kSwitch, config.window > 0);
    if (config.window == 0) return;
    json.add(kWindow, config.window);
    std::vector<Json> types;
    std::int64_t full = 0;   // at the beginning: transformers before 4.53 reads no types
    for (std::int64_t layer = 0; layer < config.layers; layer++) {
        const bool slides = config.slides(layer);
        if (!slides && full == layer) full++;
        types.emplace_back(slides ? kSlides : kSeesAll);
    }
    json.add(kFullLayers, full);
    json.add(kTypes, types);
}
