// Applies rotary positions (Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021): channel
// i < HS/2 of a head and channel i + HS/2 are a pair, rotated by the angle position * frequency of i (Hugging Face's
// half-split form of Llama):
//   (x_i, x_j) -> (x_i cos a - x_j sin a,  x_j cos a + x_i sin a),   a = position * theta^(-2i / HS)
// The product of a rotated query and a rotated key then depends only on the difference of their positions. Backward
// rotates gradients by -a. All arithmetic is fp32, rounded once.
//
// A factor above 1 slows frequencies for more positions than the first training had, as transformers does: all of them
// (linear), or by wavelength (Llama 3.1): those whose wavelength is above trained / low are divided by it, those with a
// wavelength below trained / high stay, and those between are a mix. YaRN (Peng et al., "YaRN: efficient context window
// extension of large language models", 2023, section 3.2) mixes by the pair's number instead: pairs up to `first_pair`
// stay, those from `last_pair` are divided. It also multiplies what is rotated by a scale (section 3.4).
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/vec.cuh"

struct RotaryFrequencies {
    float theta;            // base
    float factor = 1;       // divisor of low frequencies; 1: none
    float trained = 0;      // positions of the first training; 0: all frequencies are low (linear)
    float low = 1;          // a frequency with fewer turns over these positions is divided by the whole factor,
    float high = 4;         // one with more turns than this by nothing; low < high
    bool by_pair = false;   // YaRN: in place of `trained`, `low` and `high`
    float first_pair = 0, last_pair = 1;
    float scale = 1;   // multiplies rotated queries and keys
};

// Returns YaRN's frequencies, as transformers computes them: pairs between those with `fast` and `slow` turns over
// `trained` positions are a mix.
inline RotaryFrequencies yarn_frequencies(double theta, double factor, double trained, double fast, double slow,
                                          double scale, int HS) {
    auto pair_with = [&](double turns) {   // whose frequency has so many turns
        return HS * std::log(trained / (turns * 2 * 3.14159265358979323846)) / (2 * std::log(theta));
    };
    const double first = std::max(std::floor(pair_with(fast)), 0.0),
                 last = std::min(std::ceil(pair_with(slow)), HS - 1.0);
    return {.theta = static_cast<float>(theta),
            .factor = static_cast<float>(factor),
            .by_pair = true,
            .first_pair = static_cast<float>(first),
            .last_pair = static_cast<float>(first == last ? last + 0.001 : last),
            .scale = static_cast<float>(scale)};
}

// Angles of the rows of a call: positions times frequencies.
struct RotaryAngles {
    int first_row, T;      // row r is token (first_row + r) % T of the local ones
    Positions positions;   // positions of the local tokens
    RotaryFrequencies frequencies;
    bool backward;   // rotates gradients by -a

    float log2_theta() const { return std::log2(frequencies.theta); }
    // Declares what a kernel for `rows` rows reads of positions.
    void declare(Launch& where, int rows) const {
        if (positions.of_rows) {
            where.reads(positions.of_rows + first_row, static_cast<std::size_t>(rows) * sizeof(int));
        } else if (positions.list) {
            where.reads(positions.list, static_cast<std::size_t>(T) * sizeof(int));
        }
    }
};

template <class Real>
struct Rotary {
    Real* heads;            // (rows, row): the first `turned` heads of each row are rotated in place
    std::int64_t row;       // elements from one row to the next, a multiple of 8
    int rows, turned, HS;   // HS a multiple of 16
    RotaryAngles angles;
};

template <class Real>
void rotary(const Rotary<Real>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Returns the frequency of pair i; log2_theta is log2 of the base.
__device__ inline float rotary_frequency(int i, int HS, float log2_theta, const RotaryFrequencies& f) {
    constexpr float two_pi = 6.283185307179586f;
    const float frequency = exp2f(-static_cast<float>(2 * i) / static_cast<float>(HS) * log2_theta);
    const float turns = f.trained * frequency / two_pi;   // turns over the positions of training
    const float by_turns = (turns - f.low) / (f.high - f.low);
    const float by_pair = 1.0f - (static_cast<float>(i) - f.first_pair) / (f.last_pair - f.first_pair);
    const float kept = fminf(fmaxf(f.by_pair ? by_pair : by_turns, 0.0f), 1.0f);
    return f.factor > 1.0f ? frequency * (kept + (1.0f - kept) / f.factor) : frequency;
}

// Rotates eight pairs of channels (x, y) by their angles.
struct RotaryTurn {
    Vec8<float> cosines, sines;

    __device__ __forceinline__ void turn(Vec8<float>& x, Vec8<float>& y) const {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float left = fmaf(x[k], cosines[k], -(y[k] * sines[k]));
            y[k] = fmaf(y[k], cosines[k], x[k] * sines[k]);
            x[k] = left;
        }
    }
};

// Returns the turn of pairs first .. first + 7 of a row's heads.
__device__ __forceinline__ RotaryTurn rotary_turn(const RotaryAngles& angles, std::int64_t row, int first, int HS,
                                                  float log2_theta) {
    const auto position = static_cast<float>(angles.positions.of_row(angles.first_row + row, angles.T));
    RotaryTurn of;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float angle = position * rotary_frequency(first + k, HS, log2_theta, angles.frequencies);
        sincosf(angle, &of.sines[k], &of.cosines[k]);
        of.cosines[k] *= angles.frequencies.scale, of.sines[k] *= angles.frequencies.scale;
        if (angles.backward) of.sines[k] = -of.sines[k];
    }
    return of;
}

// Heads whose loads a thread has under way at once.
template <class Real>
constexpr int kHeadsAtOnce = static_cast<int>(8 / sizeof(Real));

// A thread rotates eight pairs of a row in all its heads, because their angles are the same.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) rotary_kernel(Rotary<Real> a, float log2_theta) {
    const int eights = a.HS / 16;
    const std::int64_t unit = std::int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
    const std::int64_t row = unit / eights;
    if (row >= a.rows) return;
    const int first = static_cast<int>(unit % eights) * 8;
    const RotaryTurn of = rotary_turn(a.angles, row, first, a.HS, log2_theta);
    Real* const own = a.heads + row * a.row + first;
    constexpr int n = kHeadsAtOnce<Real>;
    for (int head = 0; head < a.turned; head += n) {
        Vec8<Real> left[n], right[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (head + i >= a.turned) break;
            const Real* const at = own + std::int64_t{head + i} * a.HS;
            left[i] = load_packets<8>(at), right[i] = load_packets<8>(at + a.HS / 2);
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (head + i >= a.turned) break;
            Real* const at = own + std::int64_t{head + i} * a.HS;
            Vec8<float> x = to_floats(left[i]), y = to_floats(right[i]);
            of.turn(x, y);
            store_packets(at, round_to<Real>(x));
            store_packets(at + a.HS / 2, round_to<Real>(y));
        }
    }
}

template <class Real>
void rotary(const Rotary<Real>& args, cudaStream_t stream) {
    ENSURE(args.HS % 16 == 0 && args.row % 8 == 0, "rotary positions of heads of ", args.HS, " in rows of ", args.row);
    if (args.rows == 0) return;
    Launch where = elementwise_launch(std::int64_t{args.rows} * (args.HS / 2), stream);
    const auto rows = static_cast<std::size_t>(args.rows);
    const std::size_t span = sizeof(Real) * rows * static_cast<std::size_t>(args.row),
                      bytes = sizeof(Real) * rows * static_cast<std::size_t>(args.turned * args.HS);
    where.reads(args.heads, span, bytes).writes(args.heads, span, bytes);
    args.angles.declare(where, args.rows);
    launch(rotary_kernel<Real>, where, args, args.angles.log2_theta());
}
