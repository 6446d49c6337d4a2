// What a stage does in one step, as data: a list of actions, carried out in order (pipeline.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

struct Action {
    enum class Kind : std::uint8_t {
        forward,
        backward_input,    // with the gradients of weights, unless the stage delays them (InFlight::delayed)
        backward_weight,   // these, where they are delayed
    } kind;
    int chunk;   // of the stage
    int micro_batch;
    friend bool operator==(const Action&, const Action&) = default;
};
using PipelineSchedule = std::vector<Action>;

// One device: each micro-batch forward through all chunks and back, one after the other.
inline PipelineSchedule one_stage_schedule(int micro_batches, int chunks = 1) {
    PipelineSchedule schedule;
    for (int m = 0; m < micro_batches; m++) {
        for (int chunk = 0; chunk < chunks; chunk++) schedule.push_back({Action::Kind::forward, chunk, m});
        for (int chunk = chunks; chunk-- > 0;) schedule.push_back({Action::Kind::backward_input, chunk, m});
    }
    return schedule;
}

// The same without the way back.
inline PipelineSchedule forward_schedule(int micro_batches, int chunks = 1) {
    PipelineSchedule schedule;
    for (int m = 0; m < micro_batches; m++) {
        for (int chunk = 0; chunk < chunks; chunk++) schedule.push_back({Action::Kind::forward, chunk, m});
    }
    return schedule;
}

inline int micro_batches_of(const PipelineSchedule& schedule) {
    int most = 0;
    for (const Action& action : schedule) most = std::max(most, action.micro_batch + 1);
    return most;
}
