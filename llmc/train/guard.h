// What watches over a run: values that are not finite, values far out of line, and requests to stop.
#pragma once

#include <array>
#include <string>

// The z-score of each new value among the last 128, as llm.c computes it; NaN until there are 128.
// The sums are kept in double and updated, so a resumed run must restore the whole state to see the same scores.
class OutlierDetector {
public:
    static constexpr int kWindow = 128;

    struct State {
        std::array<double, kWindow> values{};
        int count = 0;   // values seen, up to kWindow
        int next = 0;    // where the next one goes once the window is full
        double sum = 0, sum_of_squares = 0;
    };

    // Values that are not finite are left out of the window (one of them would spoil it for good): their score is NaN.
    double update(double value);

    const State& state() const { return state_; }
    void restore(const State& state) { state_ = state; }

private:
    State state_;
};

// Requests to stop: SIGINT, SIGTERM and SIGUSR1 (what batch systems send before the time is up) are remembered while
// this object lives: the training loop stops after the step at hand, the start-up after what it is doing. The second
// one of the same kind ends the process at once, as without us.
class StopSignals {
public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    // The name of the signal received, or an empty string.
    std::string received() const;

    // For the start-up, when there is nothing to save: Error(resumable) where a signal has been received.
    void leave_if_received() const;
};
