// For tests: what two equal runs have in common of a metrics.jsonl, which is all but its times and memory. In shell:
// dev/test/without_times.sh.
#pragma once

#include <regex>
#include <string>

inline std::string without_times(const std::string& lines) {
    const std::regex keys(
        "\"(tokens_per_s|mfu|step_ms|slowest_rank|waiting|exposed_ms|gpu_[a-z]+|memory_bytes)\":(\\{[^}]*\\}|[^,}]*),"
        "?");
    return std::regex_replace(lines, keys, "");
}
