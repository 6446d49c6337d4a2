// Records one step of all ranks as a Chrome trace (--trace FILE), on the virtual clock of the stand-in
// (llmc/cuda_on_cpu/clock/trace.h).
#pragma once

#include <functional>
#include <string>

#include "llmc/io/file.h"
#include "llmc/process/world.h"

// Throws Error(usage) if `path` is set and this build cannot record: on a GPU, where Nsight Systems shows the same on
// the real clock.
void check_can_trace(const std::string& path);

// Runs `step` on every rank; the first rank writes the operations of all to `path`. Collective; `world` null: one
// process.
void trace_step(FileSystem& files, const std::string& path, World* world, const std::function<void()>& step);
