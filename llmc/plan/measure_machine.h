// What `check --write-machine` measures of the machine it runs on (machine.h). Collective: ranks that share a machine's
// cores or links measure together, as they would compute.
#pragma once

#include "llmc/plan/machine.h"
#include "llmc/process/link_speed.h"
#include "llmc/process/world.h"

// Matmuls by size, attention, copies and the gap between kernels, of the slowest rank; links from `links` (null: one
// rank), whose pairs are told apart by whether they are on one host. The same on all ranks.
Machine measure_machine(World& world, const LinkSpeeds* links, cudaStream_t stream);
