// Work after a step, in this order. A request to stop can come before any of it. Then the checkpoint says which work is
// next, and the resumed run begins there, so it leaves the same records as a run that was never stopped.
#pragma once

enum class AfterStep { validation, evaluation, sample, checkpoint, next_step };

constexpr AfterStep after(AfterStep work) { return static_cast<AfterStep>(static_cast<int>(work) + 1); }

constexpr const char* name_of(AfterStep work) {
    constexpr const char* names[] = {"validation", "evaluation", "sample", "checkpoint", "step"};
    return names[static_cast<int>(work)];
}
