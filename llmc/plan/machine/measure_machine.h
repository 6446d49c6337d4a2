// Measures the machine for `check --write-machine` (machine.h). Collective: all ranks measure at the same time, so they
// share cores and links as in a run.
#pragma once

#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/config.h"
#include "llmc/plan/machine/machine.h"
#include "llmc/process/link_speed.h"
#include "llmc/process/world.h"

// Work of a rank's micro-batch, at whose shapes speeds are measured.
struct MeasuredLoad {
    int rows;   // rows of matmuls; without a GPU at most 256 count
    AttentionShape attention;
    AttentionKind kind = AttentionKind::auto_;
    MatmulOptions matmul = {};
};
// Returns the load of a model's micro-batches of B sequences of T tokens on one device.
MeasuredLoad measured_load(const ModelConfig& config, int B, int T);

// Returns the slowest rank's matmuls by size, attention, copies and gap between kernels, each the median of two seconds
// on a GPU, and the slowest links within and between hosts from `links` (null: one rank); without a GPU also how much a
// collective takes from work beside it, as multiprocessors of which it has `comm_sms`. The same on all ranks.
Machine measure_machine(World& world, const MeasuredLoad& load, const LinkSpeeds* links, int comm_sms,
                        cudaStream_t stream);
