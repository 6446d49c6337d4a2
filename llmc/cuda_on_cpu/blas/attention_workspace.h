// For tests: a CPU's library attention needs no workspace; this makes it ask for one, as a GPU's does.
#pragma once

#include <atomic>
#include <cstddef>

namespace host {

// Bytes that prepare() allocates for an object: so many, and so many more for each sequence; initially 0.
extern std::atomic<std::size_t> attention_workspace_bytes, attention_workspace_bytes_of_sequence;

}   // namespace host
