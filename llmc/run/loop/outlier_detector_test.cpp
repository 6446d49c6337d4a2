#include "llmc/run/loop/outlier_detector.h"

#include <doctest/doctest.h>

#include <cmath>

TEST_CASE("outlier detector: z-scores begin once the window is full, and match their definition") {
    OutlierDetector detector;
    for (int i = 0; i < OutlierDetector::kWindow; i++) CHECK(std::isnan(detector.update(i % 2 == 0 ? 1.0 : 3.0)));
    // 127 of the old values and the new one: mean and deviation of those 128
    const double mean = (63 * 1.0 + 64 * 3.0 + 10.0) / 128, square = (63 * 1.0 + 64 * 9.0 + 100.0) / 128;
    CHECK(detector.update(10.0) == doctest::Approx((10.0 - mean) / std::sqrt(square - mean * mean)));
    CHECK(detector.update(2.0) < 0.2);

    OutlierDetector constant;
    for (int i = 0; i < 300; i++) constant.update(0.1);
    CHECK(std::abs(constant.update(0.1)) < 1.0);
}

TEST_CASE("outlier detector: a value that is not finite leaves the window as it was") {
    OutlierDetector with, without;
    for (int i = 0; i < 200; i++) {
        double value = std::sin(i);
        if (i % 50 == 7) {
            CHECK(std::isnan(with.update(std::nan(""))));
            CHECK(std::isnan(with.update(INFINITY)));
        }
        double a = with.update(value), b = without.update(value);
        CHECK((a == b || (std::isnan(a) && std::isnan(b))));
    }
}

TEST_CASE("outlier detector: a restored detector goes on exactly") {
    OutlierDetector whole, first;
    for (int i = 0; i < 150; i++) whole.update(std::sin(i)), first.update(std::sin(i));
    OutlierDetector second;
    second.restore(first.state());
    for (int i = 150; i < 400; i++) CHECK(whole.update(std::sin(i)) == second.update(std::sin(i)));
}
