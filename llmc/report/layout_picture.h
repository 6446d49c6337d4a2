// Draws a run's layout: a cell for every rank, pipeline stages side by side, the tensor-parallel ranks of one replica
// in a row.
#pragma once

#include <string>

#include "llmc/base/json.h"

// Returns HTML with the picture and the layout in words, or an empty string without a start. `record`: options.json
// (llmc/run/run_record.h).
std::string layout_section(const Json& record);
