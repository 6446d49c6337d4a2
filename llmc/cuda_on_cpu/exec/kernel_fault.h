// Faults of kernels: caught as signals, turned into the fault of the block that was running (Block::fault()).
#pragma once

#include <cstdint>
#include <string>

namespace host {

struct Warp;

// Prepares the calling thread to run blocks: from then on a fault inside a kernel ends that block instead of the
// process. Must be called on every thread that runs blocks. Repeated calls cost nothing.
void prepare_thread_for_kernels();

// Ends the running block because `lane` shuffles from a lane that takes no part.
[[noreturn]] void fail_shuffle(const Warp& warp, std::uint32_t participants, unsigned lane);

std::string hex(std::uint64_t value);

}   // namespace host
