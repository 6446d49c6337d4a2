#include "llmc/kernels/rows/rotary.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

constexpr int HS = 64, heads = 5, rows = 12;   // heads: not a multiple of those at once
constexpr double theta = 10000;
constexpr RotaryFrequencies plain{.theta = theta};

// One row per position from `first` on, turned.
template <class Real>
Doubles turned(const Doubles& values, int first, const RotaryFrequencies& frequencies = plain, bool backward = false) {
    KernelTest test;
    auto device = test.tensor<Real>(values);
    rotary(Rotary<Real>{.heads = device.data(),
                        .row = heads * HS,
                        .rows = rows,
                        .turned = heads,
                        .HS = HS,
                        .angles = {.first_row = 0,
                                   .T = rows,
                                   .positions = {.first = first},
                                   .frequencies = frequencies,
                                   .backward = backward}},
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

// Returns the frequencies of heads of `size` channels: a pair (1, 0) at position 1 turns by its frequency.
Doubles frequencies_of(int size, const RotaryFrequencies& frequencies) {
    KernelTest test;
    const auto pairs = static_cast<std::size_t>(size / 2);
    Doubles values(2 * pairs, 0);
    std::fill_n(values.begin(), pairs, 1.0);
    auto device = test.tensor<float>(values);
    rotary(Rotary<float>{.heads = device.data(),
                         .row = size,
                         .rows = 1,
                         .turned = 1,
                         .HS = size,
                         .angles = {.first_row = 0,
                                    .T = 1,
                                    .positions = {.first = 1},
                                    .frequencies = frequencies,
                                    .backward = false}},
           test.stream);
    const Doubles turned = device.values();
    Doubles found(pairs);
    for (std::size_t i = 0; i < pairs; i++) found[i] = std::atan2(turned[pairs + i], turned[i]);
    return found;
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
    // the last row is at 131,071, the last position of Llama 3.1
    for (const auto& [first, factor] : {std::pair(100, 1.0), {100, 8.0}, {131'060, 1.0}, {131'060, 8.0}}) {
        const RotaryFrequencies frequencies{.theta = theta, .factor = static_cast<float>(factor), .trained = 8192};
        const Doubles found = turned<float>(values, first, frequencies);
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
                    const double a = (first + row) * frequency;
                    const auto at = static_cast<std::size_t>((row * heads + head) * HS + i), pair = at + HS / 2;
                    const double x = values[at], y = values[pair], size = std::abs(x) + std::abs(y);
                    CHECK(std::abs(found[at] - (x * std::cos(a) - y * std::sin(a))) <=
                          size * angle_error(first + rows));
                    CHECK(std::abs(found[pair] - (y * std::cos(a) + x * std::sin(a))) <=
                          size * angle_error(first + rows));
                }
            }
        }
        const Doubles back = turned<float>(found, first, frequencies, true);
        for (std::size_t i = 0; i < values.size(); i++) CHECK(std::abs(back[i] - values[i]) < 1e-5);
    }
}

// Recorded from the functions of transformers 5.24 (modeling_rope_utils), in double precision.
TEST_CASE("rotary: scaled frequencies are those of transformers: linear, Llama 3's by wavelength, and YaRN's") {
    struct Recorded {
        int head_size;
        RotaryFrequencies frequencies;
        Doubles expected;
    };
    const Recorded all[] = {
        {64, {.theta = 10000, .factor = 4}, {0.25,           0.1874735523,    0.1405853313,    0.1054241259,
                                             0.0790569415,   0.05928434264,   0.04445698525,   0.0333380358,
                                             0.025,          0.01874735523,   0.01405853313,   0.01054241259,
                                             0.00790569415,  0.005928434264,  0.004445698525,  0.00333380358,
                                             0.0025,         0.001874735523,  0.001405853313,  0.001054241259,
                                             0.000790569415, 0.0005928434264, 0.0004445698525, 0.000333380358,
                                             0.00025,        0.0001874735523, 0.0001405853313, 0.0001054241259,
                                             7.90569415e-05, 5.928434264e-05, 4.445698525e-05, 3.33380358e-05}},
        {16,
         {.theta = 500000, .factor = 2.5f},
         {0.4, 0.0775690979, 0.01504241237, 0.002917065895, 0.0005656854249, 0.0001096992703, 2.127318359e-05,
          4.125354151e-06}},
        {64,
         {.theta = 500000, .factor = 32, .trained = 8192},
         {1,
          0.6636012377,
          0.4403666027,
          0.2922278226,
          0.1939227447,
          0.1286873734,
          0.08539710029,
          0.05666962145,
          0.03760603093,
          0.02495540867,
          0.01656044008,
          0.01098952853,
          0.007292664737,
          0.004839421346,
          0.003211445995,
          0.001290547928,
          0.0004295567966,
          9.708287803e-05,
          1.946163818e-05,
          1.291476719e-05,
          8.57025549e-06,
          5.68723215e-06,
          3.774054294e-06,
          2.504467101e-06,
          1.661967468e-06,
          1.102883669e-06,
          7.318749675e-07,
          4.856731343e-07,
          3.22293293e-07,
          2.138742282e-07,
          1.419272025e-07,
          9.418306725e-08}},
        {32,
         {.theta = 10000, .factor = 4, .trained = 256},
         {1, 0.5623413252, 0.316227766, 0.177827941, 0.1, 0.03221069575, 0.01018591636, 0.004445698525, 0.0025,
          0.001405853313, 0.000790569415, 0.0004445698525, 0.00025, 0.0001405853313, 7.90569415e-05, 4.445698525e-05}},
        {48,
         {.theta = 1000000, .factor = 16, .trained = 1000, .low = 2, .high = 7.5f},
         {1,        0.5623413252,    0.316227766,     0.177827941,
          0.1,      0.05623413252,   0.018324615,     0.003627951433,
          0.000625, 0.0003514633282, 0.0001976423538, 0.0001111424631,
          6.25e-05, 3.514633282e-05, 1.976423538e-05, 1.111424631e-05,
          6.25e-06, 3.514633282e-06, 1.976423538e-06, 1.111424631e-06,
          6.25e-07, 3.514633282e-07, 1.976423538e-07, 1.111424631e-07}},
        {64,
         yarn_frequencies(500000, 8, 8192, 32, 1, 1, 64),
         {1,
          0.6636012793,
          0.4403666258,
          0.2922278345,
          0.1939227581,
          0.1286873817,
          0.08539710194,
          0.05666961893,
          0.0376060307,
          0.02495540865,
          0.01495039836,
          0.008852675557,
          0.005165637471,
          0.002957424149,
          0.001650326303,
          0.000887966482,
          0.0004517625785,
          0.0002085497254,
          7.784655463e-05,
          5.165906987e-05,
          3.428102355e-05,
          2.274892904e-05,
          1.509621779e-05,
          1.001786859e-05,
          6.647869668e-06,
          4.411534519e-06,
          2.927499736e-06,
          1.942692506e-06,
          1.289173156e-06,
          8.554969213e-07,
          5.677088097e-07,
          3.767322596e-07}},
        {32,
         yarn_frequencies(10000, 4, 64, 32, 1, 1, 32),
         {1, 0.4779901206, 0.2213594317, 0.09780536592, 0.03999999911, 0.01405853219, 0.007905694656, 0.004445698578,
          0.002499999944, 0.001405853312, 0.0007905694656, 0.0004445698578, 0.0002500000119, 0.0001405853254,
          7.905694656e-05, 4.445698505e-05}},
        {16,
         yarn_frequencies(1e6, 2.5, 4, 3, 2, 1, 16),   // all but the first pair turn less than that
         {1, 0.07113117725, 0.01264911145, 0.002249365207, 0.0003999999899, 7.113117317e-05, 1.264911043e-05,
          2.249365252e-06}},
    };
    for (const Recorded& one : all) {
        const Doubles found = frequencies_of(one.head_size, one.frequencies);
        REQUIRE(found.size() == one.expected.size());
        for (std::size_t i = 0; i < found.size(); i++) {
            INFO("heads of ", one.head_size, ", factor ", one.frequencies.factor, ", pair ", i);
            CHECK(std::abs(found[i] - one.expected[i]) <= 3e-6 * one.expected[i]);
        }
    }
}
