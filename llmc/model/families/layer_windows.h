// Reads and writes which layers slide and which have positions, as config.json says it: "layer_types" lists the layers
// that slide. Without that list they follow from other fields, in each family in its own way.
#pragma once

#include <cstdint>
#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"

// How config.json says the layers that slide.
enum class LayerTypes : std::uint8_t {
    none,   // it does not
    // Qwen2 and Qwen3: "use_sliding_window" switches windows on; without the list the first "max_window_layers" have
    // none.
    qwen,
    // SmolLM3: a switch, too; without the list the layers without positions slide. "no_rope_layers" has a 0 for each of
    // these, and without it they are every "no_rope_layer_interval"th.
    smollm3,
    olmo3,   // no switch; without the list all but every fourth layer slide
};

// Returns a config.json in which "sliding_window" is the window, null where no layer slides, "layer_types" the text of
// --layer-pattern and, of a SmolLM3, "no_rope_layers" that of --rope-layers. Fields that are left out mean what the
// family's configuration class in transformers 5.24 has. `path` is for messages. Error(bad_data) naming what is not
// supported.
Json with_layer_windows_flat(LayerTypes of, const Json& json, const std::string& path);

// Adds these fields, as the classes read them, to a config.json.
void add_layer_windows(LayerTypes of, Json& json, const ModelConfig& config);
