// A signal reaches one rank; all must stop after the same step. So requests to stop travel as numbers that are summed
// over ranks, beside the step's other sums (step.h) or alone (agreement.h), and every rank sees the same sum.
#pragma once

#include <string>

#include "llmc/base/error.h"

struct StopVotes {
    double asking = 0;     // how many ranks ask
    double rank_sum = 0;   // of their numbers: the one that asks, where it is one

    static StopVotes of(int rank, bool asks) { return asks ? StopVotes{1, static_cast<double>(rank)} : StopVotes{}; }
    bool any() const { return asking > 0; }
    std::string words() const {
        return asking > 1 ? text("signals to ", asking, " ranks") : text("a signal to rank ", rank_sum);
    }
};
