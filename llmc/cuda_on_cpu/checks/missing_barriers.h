// Finds missing barriers: a kernel is run twice from the same memory, with its threads and blocks in ascending and in
// descending order, and must write the same bytes.
//
// Between two barriers a thread runs without interruption. So without a needed barrier a thread sees the writes of
// earlier threads and not those of later ones, and the other order turns that around. This also finds blocks that
// depend on each other, and atomics whose order shows in the result (which the project forbids).
//
// Memory is restored after the first run by copy on write: device memory is made read-only, and the first write to a
// piece of it saves the piece. That also shows writes that a launch did not declare although it declared others: the
// race detector would not see them.
#pragma once

#include "llmc/cuda_on_cpu/exec/grid.h"

namespace host {

// Returns true if a launch site has launched this kernel in this shape fewer times than are worth checking.
bool is_new_to_order_check(const Grid& grid);

// Runs the grid in both orders on the calling thread, leaving the memory as either run does. Returns the fault of a
// run, a difference between them, or an undeclared write.
GridFault run_grid_in_orders(const Grid& grid);

// For the fault handler: saves the piece and returns true if the write was to a piece not yet saved on this thread.
bool log_write(const void* address);

}   // namespace host
