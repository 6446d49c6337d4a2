// Runs a kernel launch on a CPU: the blocks of a grid over the thread pool, with their shared memory, checks and
// faults.
//
// Blocks run one per pool thread, each to its end, in no fixed order; a correct CUDA program cannot tell. A fault ends
// the launch: blocks not begun are skipped, and of several faults the lowest block's is reported.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/exec/block.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

constexpr std::size_t most_shared_bytes = 227 << 10;   // dynamic, as on sm_90

struct Grid {
    std::string kernel;   // for messages
    const char* file;     // place of the launch
    int line;
    dim3 blocks, threads;
    std::size_t shared_bytes;
    std::vector<Access> accesses;   // as declared; may be empty
    BlockTask task;
};

struct GridFault {
    cudaError_t error = cudaSuccess;
    std::string message;   // names kernel, launch site, block, thread and what happened
};

// Runs all blocks; the result's error is cudaSuccess if none faulted. The dimensions must be within CUDA's limits. With
// the races check on, the first launches of a shape at a launch site are also checked by missing_barriers.h.
GridFault run_grid(const Grid& grid);

// Order of threads and blocks in a run of a grid.
struct RunOrder {
    ThreadOrder threads = ThreadOrder::ascending;
    bool blocks_descending = false;
    std::uint64_t seed = 0;       // seed of ThreadOrder::shuffled
    bool on_one_thread = false;   // runs on the caller's thread, block after block
};
GridFault run_grid(const Grid& grid, const RunOrder& order);

// Returns "kernel add<float> launched at file:line"
std::string describe_launch(const Grid& grid);

// Dynamic shared memory of the block that runs on this thread: 16-byte aligned, ends at an inaccessible page.
extern __thread char* dynamic_shared_memory;
extern __thread std::size_t dynamic_shared_bytes;   // as the launch asked for

// Returns "layernorm_forward<float>" for the address of that kernel, from the program's own symbols.
const std::string& kernel_name(const void* kernel);

}   // namespace host
