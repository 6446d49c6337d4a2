#include "llmc/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "llmc/base/check.h"

float learning_rate(const Schedule& s, int step) {
    ENSURE(step >= 1 && step <= s.steps, "the learning rate of step ", step, " of ", s.steps);
    const double lr = s.lr, lowest = lr * s.final_frac;
    if (s.kind == ScheduleKind::constant) return s.lr;
    if (step <= s.warmup) return static_cast<float>(lr * step / s.warmup);

    const double done = step - 1;
    const double progress =
        (done - s.warmup) / (s.steps - s.warmup);   // 0 at the first step after the warm-up, below 1
    switch (s.kind) {
        case ScheduleKind::cosine:
            return static_cast<float>(lowest + 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) * (lr - lowest));
        case ScheduleKind::linear: return static_cast<float>(lr - progress * (lr - lowest));
        case ScheduleKind::wsd: {
            const double decay_start = s.decay_steps > 0 ? s.steps - s.decay_steps : std::floor(0.8 * s.steps);
            if (done < decay_start) return s.lr;
            return static_cast<float>(lowest + (1.0 - std::sqrt((done - decay_start) / (s.steps - decay_start))) *
                                                   (lr - lowest));
        }
        case ScheduleKind::constant: break;
    }
    return s.lr;
}
