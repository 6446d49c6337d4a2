// Reads and writes which layers slide, as a Qwen2's or Qwen3's config.json says it: "use_sliding_window" switches the
// windows on, "layer_types" lists the layers that have them, and without it the first "max_window_layers" have none.
#pragma once

#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"

// Returns a config.json in which "sliding_window" is the window, null where no layer slides, and "layer_types" the text
// of --layer-pattern. Fields that are left out mean what Qwen2Config and Qwen3Config of transformers 5.24 have. `path`
// is for messages. Error(bad_data) naming what is not supported.
Json with_layer_windows_flat(const Json& json, const std::string& path);

// Adds these fields, as the classes read them, to a config.json.
void add_layer_windows(Json& json, const ModelConfig& config);
