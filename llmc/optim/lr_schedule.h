// The learning rate of each step, as a pure function.
//
// All but `constant` rise linearly over the first `warmup` steps, to the full rate at step `warmup`, then:
//   cosine    half a cosine down to final_frac * lr
//   linear    a straight line down to final_frac * lr
//   constant  stays (as in llm.c, without a warm-up)
//   wsd       stays until the last decay_steps (0: 20% of all), then 1 - sqrt down to final_frac * lr (Hägele et al.,
//             "Scaling laws and compute-optimal training beyond fixed training durations", 2024)
// The values are llm.c's: its step counts from 0 and is this one's minus 1, so the very last step stands one step short
// of the final fraction. A resumed run and one cut with --stop-after see the same values as the uncut one.
#pragma once

#include <string>

enum class ScheduleKind { cosine, linear, constant, wsd };

struct Schedule {
    ScheduleKind kind = ScheduleKind::cosine;
    float lr = 3e-4f;
    int warmup = 0;
    int steps = 0;   // all steps of the run, at least `warmup`
    float final_frac = 1.0f;
    int decay_steps = 0;   // for wsd; at most `steps`
};

// Steps count from 1.
float learning_rate(const Schedule& schedule, int step);
