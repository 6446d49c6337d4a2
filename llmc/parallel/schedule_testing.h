// Orders of actions over two chunks, for tests.
#pragma once

#include "llmc/parallel/schedule.h"

// Every micro-batch forward through both, then back: one after the other, or all of them through the upper chunk first,
// so that the chunks are not at the same micro-batch.
inline PipelineSchedule all_forward_then_back(int micro_batches, bool chunk_by_chunk) {
    PipelineSchedule schedule;
    for (int m = 0; m < micro_batches; m++) {
        for (int chunk : {0, 1}) schedule.push_back({Action::Kind::forward, chunk, m});
    }
    for (int i = 0; i < 2 * micro_batches; i++) {
        const int chunk = chunk_by_chunk ? 1 - i / micro_batches : 1 - i % 2;
        schedule.push_back({Action::Kind::backward_input, chunk, chunk_by_chunk ? i % micro_batches : i / 2});
    }
    return schedule;
}
