#include "llmc/run/loop/outlier_detector.h"

#include <cmath>
#include <limits>

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
