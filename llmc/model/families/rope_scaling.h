// Reads and writes the object of a config.json of Llama's kind that says the frequencies of rotary positions:
// "rope_scaling" of transformers 4, which counts where both are there, or "rope_parameters" of 5. An OLMo 3 has two,
// for layers that slide and for the others.
#pragma once

#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"

// Returns a config.json in which the fields of that object stand beside the others, and rope_type has a name of
// --rope-scaling. rope_theta of the object counts before the one outside; original_max_position_embeddings outside
// counts before the one in the object, and max_position_embeddings where neither is there. `path` is for messages.
// Error(bad_data) naming what is not supported.
Json with_rope_scaling_flat(const Json& json, const std::string& path);

// Returns an OLMo 3's config.json, whose "sliding_window" is null where no layer slides, in which "rope_scaling" is the
// object of layers that do not slide, and "rope_window_theta" the base of those that do, if their frequencies differ;
// as Olmo3Config of transformers 5.24 reads it. Error(bad_data): layers that slide have a scaling of their own.
Json with_rope_by_layer_flat(const Json& json, const std::string& path);

// Returns the object "rope_scaling" of a model with scaling. transformers 4 and 5 both read it, with rope_theta
// outside.
Json rope_scaling_json(const ModelConfig& config);

// Returns an OLMo 3's object "rope_parameters".
Json rope_by_layer_json(const ModelConfig& config);
