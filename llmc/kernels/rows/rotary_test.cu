#include "llmc/kernels/rows/rotary.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

constexpr int HS = 64, heads = 2, rows = 12;
constexpr double theta = 10000;

// One row per position from `first` on, turned.
template <class Real>
Doubles turned(const Doubles& values, int first, float factor = 1, bool backward = false) {
    KernelTest test;
    auto device = test.tensor<Real>(values);
    rotary(Rotary<Real>{.heads = device.data(),
                        .row = heads * HS,
                        .rows = rows,
                        .turned = heads,
                        .HS = HS,
                        .first_row = 0,
                        .T = rows,
                        .positions = {.first = first},
                        .theta = static_cast<float>(theta),
                        .factor = factor,
                        .backward = backward},
           test.stream);
    return device.values();
}

// The product of row i of head 0 and row j of head 1: a query's and a key's.
double score(const Doubles& values, int i, int j) {
    double sum = 0;
    for (int c = 0; c < HS; c++) {
        sum += values[static_cast<std::size_t>(i * heads * HS + c)] *
               values[static_cast<std::size_t>((j * heads + 1) * HS + c)];
    }
    return sum;
}

// Angles are rounded to floats.
double angle_error(int position) { return 4 * position * unit<float>; }

template <class Real>
void check_scores(int shift) {
    const Doubles values = random_values<Real>(rows * heads * HS, 1.0, 3);
    const Doubles here = turned<Real>(values, 0), there = turned<Real>(values, shift);
    double most = 0;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < rows; j++) {
            double size = 0;
            for (int c = 0; c < HS; c++) {
                size += std::abs(values[static_cast<std::size_t>(i * heads * HS + c)]) *
                        std::abs(values[static_cast<std::size_t>((j * heads + 1) * HS + c)]);
            }
            const double off = std::abs(score(here, i, j) - score(there, i, j));
            CHECK(off <= 4 * size * (unit<Real> + angle_error(shift + rows)));
            most = std::max(most, std::abs(score(here, i, j) - score(values, i, j)));
        }
    }
    CHECK(most > 1);   // positions do matter
}

}   // namespace

TEST_CASE("rotary: shifting all positions changes scores by rounding only") {
    for (const int shift : {1, 77, 4000}) {
        check_scores<float>(shift);
        check_scores<bf16>(shift);
    }
}

TEST_CASE("rotary: pairs of channels are turned by position times frequency, backward turns them back") {
    const Doubles values = random_values<float>(rows * heads * HS, 1.0, 4);
    for (const double factor : {1.0, 8.0}) {
        const Doubles found = turned<float>(values, 100, static_cast<float>(factor));
        for (int row = 0; row < rows; row++) {
            for (int head = 0; head < heads; head++) {
                for (int i = 0; i < HS / 2; i++) {
                    double frequency = std::pow(theta, -2.0 * i / HS);
                    const double turns = 8192 * frequency / (2 * std::acos(-1.0));   // Llama 3.1
                    if (factor > 1 && turns < 1) frequency /= factor;
                    if (factor > 1 && turns >= 1 && turns < 4) {
                        const double kept = (turns - 1) / 3;
                        frequency *= kept + (1 - kept) / factor;
                    }
                    const double a = (100 + row) * frequency;
                    const auto at = static_cast<std::size_t>((row * heads + head) * HS + i), pair = at + HS / 2;
                    const double x = values[at], y = values[pair], size = std::abs(x) + std::abs(y);
                    CHECK(std::abs(found[at] - (x * std::cos(a) - y * std::sin(a))) <= size * angle_error(112));
                    CHECK(std::abs(found[pair] - (y * std::cos(a) + x * std::sin(a))) <= size * angle_error(112));
                }
            }
        }
        const Doubles back = turned<float>(found, 100, static_cast<float>(factor), true);
        for (std::size_t i = 0; i < values.size(); i++) CHECK(std::abs(back[i] - values[i]) < 1e-5);
    }
}
