// A run's layout as a picture: a cell for every rank, stages of the pipeline side by side, the tensor-parallel ranks of
// one replica in a row.
#pragma once

#include <string>

#include "llmc/base/json.h"

// HTML with the picture and the layout in words. `record`: of options.json (llmc/run/run_record.h).
std::string layout_section(const Json& record);
