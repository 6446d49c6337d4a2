#include "llmc/optim/batch_schedule.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <sstream>

#include "llmc/base/refuse.h"

float lr_factor(LrScaling scaling, std::int64_t tokens, std::int64_t tokens_of_lr) {
    const double ratio = static_cast<double>(tokens) / static_cast<double>(tokens_of_lr);
    switch (scaling) {
        case LrScaling::linear: return static_cast<float>(ratio);
        case LrScaling::sqrt: return static_cast<float>(std::sqrt(ratio));
        case LrScaling::none: break;
    }
    return 1.0f;
}

ByStep::ByStep(std::int64_t first, const std::string& flag, const std::string& phases, int earliest)
    : values_{first}, begins_{1} {
    int last = earliest - 1;                                            // step at which a phase began
    std::istringstream words(phases.empty() ? phases : phases + ",");   // so that an empty last one is seen
    for (std::string phase; std::getline(words, phase, ',');) {
        int step = 0;
        std::int64_t value = 0;
        const char* const end = phase.data() + phase.size();
        const auto [colon, step_code] = std::from_chars(phase.data(), end, step);
        const bool has_value = step_code == std::errc{} && colon != end && *colon == ':';
        const auto [past, value_code] = std::from_chars(has_value ? colon + 1 : end, end, value);
        refuse_if(!has_value || value_code != std::errc{} || past != end || step < 1 || value < 1,
                  text(flag, " ", phases, ": '", phase, "' is not STEP:NUMBER"),
                  "Write it as in 1000:65536,5000:131072.");
        refuse_if(step <= last, text(flag, " ", phases, ": step ", step, " does not come after step ", last),
                  text("Phases begin in rising order, from step ", earliest, " on."));
        last = step;
        if (step == 1) {
            values_.front() = value;
        } else {
            begins_.push_back(step);
            values_.push_back(value);
        }
    }
}

std::int64_t ByStep::at(int step) const {
    const auto next = std::ranges::upper_bound(begins_, step);
    return values_[static_cast<std::size_t>(next - begins_.begin()) - 1];
}

std::int64_t ByStep::sum(int after, int to) const {
    std::int64_t all = 0;
    for (std::size_t i = 0; i < values_.size(); i++) {
        const int past = i + 1 < begins_.size() ? begins_[i + 1] : INT_MAX;
        const std::int64_t steps = std::min(to, past - 1) - std::max(after, begins_[i] - 1);
        all += std::max<std::int64_t>(steps, 0) * values_[i];
    }
    return all;
}

std::int64_t ByStep::largest() const { return *std::ranges::max_element(values_); }

std::int64_t ByStep::steps_within(std::int64_t total) const {
    std::int64_t steps = 0;
    for (std::size_t i = 0; i < values_.size(); i++) {
        const std::int64_t most = total / values_[i], has = i + 1 < begins_.size() ? begins_[i + 1] - begins_[i] : most;
        const std::int64_t taken = std::min(most, has);
        steps += taken;
        total -= taken * values_[i];
        if (taken < has) break;
    }
    return steps;
}
