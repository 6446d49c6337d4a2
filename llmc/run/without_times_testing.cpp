#include "llmc/run/without_times_testing.h"

#include <regex>

std::string without_times(const std::string& lines) {
    const std::regex keys(
        "\"(tokens_per_s|mfu|step_ms|slowest_rank|waiting|exposed_ms|gpu_[a-z]+|memory_bytes)\":(\\{[^}]*\\}|[^,}]*),"
        "?");
    return std::regex_replace(lines, keys, "");
}
