// Writes a step as a Chrome trace, which chrome://tracing and https://ui.perfetto.dev show: the requests of the ranks
// to their devices (record.h), replayed on the virtual clock of a stated machine.
//
// In the trace, a process is a rank and a thread is one of its streams. An exchange that waits for its peers is shown
// as "waiting" until the last has come.
#pragma once

#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/clock/record.h"

namespace host {

// Convert a recording to text, for other processes, and back. Call sites are left out.
std::string to_text(const Recording& recording);
Recording recording_from(const std::string& text);   // throws Error(bug) for any other text

// Returns the machine of the traces: about one H100 per rank and 400 Gbit/s between any two of them.
CostModel trace_machine();

// Returns JSON in Chrome's trace event format. Times are microseconds since the beginning.
std::string chrome_trace(const std::vector<Recording>& ranks, const CostModel& costs);

}   // namespace host
