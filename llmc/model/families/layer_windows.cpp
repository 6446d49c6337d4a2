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
constexpr const char *kRopeLayers = "no_rope_layers", *kRopeInterval = "no_rope_layer_interval";
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

// Returns a letter of --rope-layers for each layer.
std::string rope_letters_in(const Json& json, const std::string& path, std::size_t layers) {
    std::string letters;
    const Json* const list = json.find(kRopeLayers);
    if (list == nullptr || list->is_null()) {
        const std::size_t interval = whole_in(json, path, kRopeInterval, 4);
        if (interval == 0) bad(path, text("\"", kRopeInterval, "\" is 0, expected at least 1"));
        for (std::size_t layer = 1; layer <= layers; layer++) letters += layer % interval == 0 ? 'N' : 'R';
        return letters;
    }
    if (!list->is_array() || list->elements().size() < layers) {
        bad(path,
            text("\"", kRopeLayers, "\" is ", quoted(*list), ", expected 0 or 1 for each of ", layers, " layers"));
    }
    for (std::size_t layer = 0; layer < layers; layer++) {
        const Json& rotates = list->elements()[layer];
        if (rotates != Json(0) && rotates != Json(1)) {
            bad(path, text("\"", kRopeLayers, "\" has ", quoted(rotates), ", expected 0 or 1"));
        }
        letters += rotates == Json(1) ? 'R' : 'N';
    }
    return letters;
}

// Returns a letter of --layer-pattern for each layer; `rope_letters` are those of a SmolLM3's layers.
std::string letters_in(LayerTypes of, const Json& json, const std::string& path, std::size_t layers,
                       const std::string& rope_letters) {
    const Json* const types = json.find(kTypes);
    std::string letters(layers, 'L');
    if (types == nullptr || types->is_null()) {
        const std::size_t full = of == LayerTypes::qwen ? whole_in(json, path, kFullLayers, 28) : 0;
        for (std::size_t layer = 0; layer < layers; layer++) {
            const bool slides = of == LayerTypes::qwen      ? layer >= full
                                : of == LayerTypes::smollm3 ? rope_letters[layer] == 'N'
                                                            : layer % 4 != 3;
            if (slides) letters[layer] = 'S';
        }
        return letters;
    }
    if (!types->is_array() || types->elements().size() != layers) {
        bad(path, text("\"", kTypes, "\" is ", quoted(*types), ", expected the types of ", layers, " layers"));
    }
    for (std::size_t layer = 0; layer < layers; layer++) {
        const Json& type = types->elements()[layer];
        if (type != Json(kSlides) && type != Json(kSeesAll)) {
            bad(path, text("\"", kTypes, "\" has ", quoted(type), ", only \"", kSeesAll, "\" and \"", kSlides,
                           "\" are supported"));
        }
        if (type == Json(kSlides)) letters[layer] = 'S';
    }
    return letters;
}

// Returns the shortest pattern that repeats to these letters; empty where all are `first`. `which` are those layers.
std::string pattern_in(const std::string& letters, char first, const std::string& path, const std::string& which,
                       const char* hint) {
    if (letters.find_first_not_of(first) == std::string::npos) return "";
    for (std::size_t length = 1; length <= std::min(letters.size(), longest_pattern); length++) {
        if (std::equal(letters.begin() + static_cast<std::ptrdiff_t>(length), letters.end(), letters.begin())) {
            return letters.substr(0, length);
        }
    }
    throw Error(ErrorKind::bad_data,
                text(path, ": ", which, ", repeat in no pattern of at most ", longest_pattern, " layers"), hint);
}

}   // namespace

Json with_layer_windows_flat(LayerTypes of, const Json& json, const std::string& path) {
    const Json* const given_layers = json.find("num_hidden_layers");
    if (given_layers == nullptr || given_layers->is_null()) return json;
    const std::size_t layers = whole_in(json, path, "num_hidden_layers", 0);
    const bool is_smollm3 = of == LayerTypes::smollm3, is_switched = of != LayerTypes::olmo3;
    const std::string rope_letters = is_smollm3 ? rope_letters_in(json, path, layers) : "";
    const Json *const given = json.find(kWindow), *const types = json.find(kTypes);
    const Json left_out = is_smollm3 ? Json(nullptr) : Json(4096);
    Json window = is_switched && !is_on(json, path) ? Json(nullptr) : given != nullptr ? *given : left_out;
    std::string pattern;
    if (!is_switched || !window.is_null() || (types != nullptr && !types->is_null())) {
        const std::string letters = letters_in(of, json, path, layers, rope_letters);
        const bool slides = letters.find('S') != std::string::npos;
        if (slides && window.is_null()) {
            const std::string off = is_switched ? text("\"", kSwitch, "\" is not true, or ") : "";
            bad(path, text("\"", kTypes, "\" has \"", kSlides, "\", but ", off, "\"", kWindow, "\" is null"));
        }
        if (!slides) window = Json(nullptr);
        if (slides) {
            pattern = pattern_in(letters, 'S', path,
                                 text("the layers that slide, by \"", kTypes, "\" or \"", kFullLayers, "\""),
                                 "Set \"use_sliding_window\" to false: then all layers see all keys.");
        }
    }
    Json flat = Json::object();
    for (const auto& [key, value] : json.members()) {
        if (key != kWindow && key != kTypes && key != kRopeLayers) flat.add(key, value);
    }
    flat.add(kWindow, window);
    flat.add(kTypes, pattern);
    if (is_smollm3) {
        flat.add(kRopeLayers, pattern_in(rope_letters, 'R', path, text("the layers of \"", kRopeLayers, "\""), ""));
    }
    return flat;
}

void add_layer_windows(LayerTypes of, Json& json, const ModelConfig& config) {
    if (of != LayerTypes::olmo3) json.add(kSwitch, config.window > 0);
    if (config.window > 0) json.add(kWindow, config.window);
    std::vector<Json> types, rotates;
    std::int64_t full = 0;   // at the beginning: transformers before 4.53 reads no types
    for (std::int64_t layer = 0; layer < config.layers; layer++) {
        const bool slides = config.slides(layer);
        if (!slides && full == layer) full++;
        types.emplace_back(slides ? kSlides : kSeesAll);
        rotates.emplace_back(config.rotates(layer) ? 1 : 0);
    }
    if (of == LayerTypes::smollm3) json.add(kRopeLayers, rotates);
    if (of == LayerTypes::qwen && config.window > 0) json.add(kFullLayers, full);
    if (of == LayerTypes::olmo3 || config.window > 0) json.add(kTypes, types);
}
