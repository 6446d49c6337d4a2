// Recording what a program asks of its device, and replaying it on a virtual clock.
//
// Two shared cores say nothing about overlap, pipeline bubbles or a layout's speed. A recording holds the order that
// the program itself imposed: streams, events, what the host waited for, and which operations of different ranks meet.
// The replay gives every operation a duration by formula and finds when each would run: the longest path through that
// order. Time costs nothing there, and a change that destroys an overlap changes a number.
#pragma once

#include "llmc/base/clock/step_graph.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

using namespace virtual_clock;   // NOLINT: what is recorded and replayed

// Runs `program`, which uses this thread's device as ever, and returns what it asked for. Nested calls are refused with
// Error(bug).
Recording record(const std::function<void()>& program);

}   // namespace host

// For programs that are also built for GPUs, which declare these weak and find them null there: runs `body` on a device
// that records and performs nothing (Device(true)); and records.
void stand_in_on_dry_device(const std::function<void()>& body);
virtual_clock::Recording stand_in_recording(const std::function<void()>& program);
