// What follows a step, in this order. A signal to stop can come before any of it: the checkpoint then says what is
// next, and the run that resumes it begins there, so that it leaves the same records as one that was never stopped.
#pragma once

enum class AfterStep { validation, evaluation, sample, checkpoint, next_step };

constexpr AfterStep after(AfterStep work) { return static_cast<AfterStep>(static_cast<int>(work) + 1); }

constexpr const char* name_of(AfterStep work) {
    constexpr const char* names[] = {"validation", "evaluation", "sample", "checkpoint", "step"};
    return names[static_cast<int>(work)];
}
