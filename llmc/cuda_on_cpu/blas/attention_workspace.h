// For tests: a CPU's library attention needs no workspace; this makes it ask for one, as a GPU's does.
#pragma once

#include <atomic>
#include <cstddef>

namespace host {

extern std::atomic<std::size_t> attention_workspace_bytes;   // bytes per object, allocated by prepare(); initially 0

}
