// Detects outliers: values far from the recent mean.
#pragma once

#include <array>

// Scores of a step's loss and gradient norm; NaN: none yet.
struct ZScores {
    double loss = 0, norm = 0;
};

// Scores each new value by its z-score among the last 128, as llm.c computes it; NaN until there are 128.
// The sums are kept in double and updated, so a resumed run must restore the whole state to see the same scores.
class OutlierDetector {
public:
    static constexpr int kWindow = 128;

    struct State {
        std::array<double, kWindow> values{};
        int count = 0;   // values seen, up to kWindow
        int next = 0;    // index of the next value once the window is full
        double sum = 0, sum_of_squares = 0;
    };

    // Returns the score of a value. A value that is not finite scores NaN and stays out of the window (it would spoil
    // the sums).
    double update(double value);

    const State& state() const { return state_; }
    void restore(const State& state) { state_ = state; }

private:
    State state_;
};
