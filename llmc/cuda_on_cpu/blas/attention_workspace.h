// For tests: a CPU's library attention needs no workspace; here it can be made to ask for one, as a GPU's does.
#pragma once

#include <atomic>
#include <cstddef>

namespace host {

extern std::atomic<std::size_t>
    attention_workspace_bytes;   // of every object, allocated when it is made ready; first 0

}
