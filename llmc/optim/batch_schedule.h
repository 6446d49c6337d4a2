// The total batch of each step, and how the learning rate follows it: pure functions of the step.
//
//   --batch-schedule 1000:65536,5000:131072    so many tokens a step from these steps on; before them --total-batch
//
// --lr holds for --lr-batch tokens (0: the first step's). For a step of k times as many, --lr-scaling multiplies it by
//   linear   k         (Goyal et al., "Accurate, large minibatch SGD", 2017: for SGD)
//   sqrt     sqrt(k)   (Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022)
//   none     1
// and rates with other names (--muon-lr) too, before the warm-up and the fall of --schedule are applied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

enum class LrScaling : std::uint8_t { linear, sqrt, none };

float lr_factor(LrScaling scaling, std::int64_t tokens, std::int64_t tokens_of_lr);

// A whole number by steps, which count from 1.
class ByStep {
public:
    // `phases`: value of the option `flag`, as above; empty: none. Throws Error(usage) unless its steps are in rising
    // order, from `earliest` on, each with a number of at least 1. A phase from step 1 on replaces `first`.
    ByStep(std::int64_t first, const std::string& flag, const std::string& phases, int earliest = 2);

    std::int64_t at(int step) const;
    // Adds up the values of the steps after + 1 .. to.
    std::int64_t sum(int after, int to) const;
    std::vector<std::int64_t> values() const { return values_; }   // in their order
    std::int64_t largest() const;
    // Returns the most steps, from the first on, whose values add up to `total` or less.
    std::int64_t steps_within(std::int64_t total) const;

private:
    std::vector<std::int64_t> values_;
    std::vector<int> begins_;   // first step of each value
};
