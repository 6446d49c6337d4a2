// A kernel launch on a CPU: the blocks of a grid over the thread pool, with their shared memory, checks and faults.
//
// Blocks run one per pool thread, each to its end, in no fixed order; a correct CUDA program cannot tell. A fault ends
// the launch: blocks not begun are skipped, and of several faults the one of the lowest block is told.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <string>

#include "llmc/host/exec_block.h"

namespace host {

constexpr std::size_t most_shared_bytes = 227 << 10;   // dynamic, as on sm_90

struct Grid {
    std::string kernel;   // for messages
    const char* file;     // of the launch
    int line;
    dim3 blocks, threads;
    std::size_t shared_bytes;
    BlockTask task;
};

struct GridFault {
    cudaError_t error = cudaSuccess;
    std::string message;   // names kernel, launch site, block, thread and what happened
};

// Runs all blocks; error cudaSuccess if none faulted. The dimensions must be within CUDA's limits.
GridFault run_grid(const Grid& grid);

// Dynamic shared memory of the block that runs on this thread: 16-byte aligned, ends at an inaccessible page.
extern __thread char* dynamic_shared_memory;

// "layernorm_forward<float>" for the address of that kernel, from the program's own symbols.
std::string kernel_name(const void* kernel);

}   // namespace host
