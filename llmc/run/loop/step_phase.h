// Phases that follow a step, in this order. A request to stop can come before any of them. Then the checkpoint says
// which is next, and the resumed run begins there, so it leaves the same records as a run that was never stopped.
#pragma once

enum class StepPhase { validation, evaluation, sample, checkpoint, next_step };

constexpr StepPhase phase_after(StepPhase phase) { return static_cast<StepPhase>(static_cast<int>(phase) + 1); }

constexpr const char* name_of(StepPhase phase) {
    constexpr const char* names[] = {"validation", "evaluation", "sample", "checkpoint", "step"};
    return names[static_cast<int>(phase)];
}
