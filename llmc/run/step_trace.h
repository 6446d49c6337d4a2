// --trace FILE: one step of all ranks as a Chrome trace, on the virtual clock of the stand-in
// (llmc/cuda_on_cpu/clock/trace.h).
#pragma once

#include <functional>
#include <string>

#include "llmc/io/file.h"
#include "llmc/process/world.h"

// Error(usage) where this build cannot record: on a GPU, where Nsight Systems shows the same on the real clock.
void check_can_trace(const std::string& path);

// Runs `step` on every rank and writes what all of them asked for to `path`, on the first one. Collective; `world`
// null: one process alone.
void trace_step(FileSystem& files, const std::string& path, World* world, const std::function<void()>& step);
