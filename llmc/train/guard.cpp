#include "llmc/train/guard.h"

#include <cmath>
#include <csignal>
#include <limits>

#include "llmc/base/error.h"

namespace {

// A handler can reach nothing else: the one place where the program needs a variable of its own.
volatile std::sig_atomic_t stop_signal = 0;

void remember(int signal) {
    stop_signal = signal;
    std::signal(signal, SIG_DFL);   // the next one is not caught
}

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};

}   // namespace

double OutlierDetector::update(double value) {
    State& s = state_;
    if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
    s.sum += value;
    s.sum_of_squares += value * value;
    if (s.count < kWindow) {
        s.values[static_cast<std::size_t>(s.count++)] = value;
        return std::numeric_limits<double>::quiet_NaN();
    }
    double& oldest = s.values[static_cast<std::size_t>(s.next)];
    s.sum -= oldest;
    s.sum_of_squares -= oldest * oldest;
    oldest = value;
    s.next = (s.next + 1) % kWindow;
    const double mean = s.sum / kWindow;
    const double variance = s.sum_of_squares / kWindow - mean * mean;
    return variance > 0 ? (value - mean) / std::sqrt(variance) : 0.0;   // rounding can make it negative
}

StopSignals::StopSignals() {
    stop_signal = 0;
    for (int signal : kSignals) std::signal(signal, remember);
}

StopSignals::~StopSignals() {
    for (int signal : kSignals) std::signal(signal, SIG_DFL);
}

std::string StopSignals::received() const {
    switch (stop_signal) {
        case SIGINT: return "SIGINT";
        case SIGTERM: return "SIGTERM";
        case SIGUSR1: return "SIGUSR1";
        default: return "";
    }
}

void StopSignals::leave_if_received() const {
    if (const std::string signal = received(); !signal.empty()) {
        throw Error(ErrorKind::resumable, text(signal, " received during start-up: stopped before the first step"));
    }
}
