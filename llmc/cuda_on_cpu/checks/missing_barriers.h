// Finds barriers that are missing: a kernel is run twice from the same memory, its threads and blocks in ascending and
// in descending order, and must write the same bytes.
//
// Between two barriers a thread runs without being interrupted, so where one is missing a thread sees what the earlier
// ones wrote and the later ones did not; the other order turns that around. This also finds blocks that depend on each
// other, and atomics whose order shows in the result (which the project forbids).
//
// The first run's memory is put back by copy on write: device memory is made read-only, and the first write to a piece
// of it saves the piece. That also shows writes that a launch did not declare, though it declared others: the race
// detector would be blind to them.
#pragma once

#include "llmc/cuda_on_cpu/exec/grid.h"

namespace host {

// Whether a launch site has launched this kernel in this shape fewer times than are worth checking.
bool is_new_to_order_check(const Grid& grid);

// Runs the grid in both orders on the calling thread, leaving the memory as either run does. The fault is that of a run,
// a difference between them, or an undeclared write.
GridFault run_grid_in_orders(const Grid& grid);

// For the fault handler: whether the write was one to a piece not yet saved on this thread; it has been now.
bool log_write(const void* address);

}   // namespace host
