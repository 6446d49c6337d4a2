// Measures the machine for `check --write-machine` (machine.h). Collective: all ranks measure at the same time, so they
// share cores and links as in a run.
#pragma once

#include "llmc/plan/machine/machine.h"
#include "llmc/process/link_speed.h"
#include "llmc/process/world.h"

// Returns the slowest rank's matmuls by size, attention, copies and gap between kernels, and the slowest links within
// and between hosts from `links` (null: one rank); without a GPU also how much a collective
// takes from work beside it, as multiprocessors of which it has `comm_sms`. The same on all ranks.
Machine measure_machine(World& world, const LinkSpeeds* links, int comm_sms, cudaStream_t stream);
