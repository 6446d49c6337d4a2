// Records what a program asks of its device, and replays it on a virtual clock.
//
// Measuring on two shared cores says nothing about overlap, pipeline bubbles or a layout's speed. A recording holds the
// order that the program itself imposed: streams, events, the host's waits, and which operations of different ranks
// meet. The replay gives every operation a duration by formula and finds when each would run: the longest path through
// that order. So a change that destroys an overlap changes a number.
#pragma once

#include "llmc/base/clock/step_graph.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

using namespace virtual_clock;   // NOLINT: types of the recording

// Runs `program` on this thread's device and returns a recording of its requests. Nested calls throw Error(bug).
Recording record(const std::function<void()>& program);

}   // namespace host
