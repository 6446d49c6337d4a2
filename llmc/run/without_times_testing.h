// For tests: what two equal runs have in common of a metrics.jsonl, which is all but its times and memory. In shell:
// dev/test/without_times.sh.
#pragma once

#include <string>

std::string without_times(const std::string& lines);
