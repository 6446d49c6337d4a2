// Holds what goes on from step to step besides tensors. It lies in a checkpoint's run.json.
#pragma once

#include <vector>

class Json;   // llmc/base/json.h

struct StepState {
    int moments_began = 0;              // step after which the moments were zero: Optimizer::begins_after
    int compressed_from = 0;            // GradientSync::compressed_from
    std::vector<int> outer_left = {};   // Optimizer::flights

    // Makes it that of a run whose moments are zero after `step` steps.
    void reset_moments(int step) { moments_began = step, outer_left.clear(); }
};

// Adds what is not as at the beginning of a run.
void add_to(Json& json, const StepState& state);

// Returns the state that is kept in `json`, after `step` steps. Throws JsonError if it names later steps.
StepState step_state_from(const Json& json, int step);
