// The loss of a model of N parameters after D tokens, L = E + A / N^a + B / D^b (Hoffmann et al., "Training
// compute-optimal large language models", 2022), its optimum for a budget of C = 6 N D FLOPs, and its fit to runs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "llmc/base/error.h"

struct ScalingLaw {
    // Corrected constants: Besiroglu et al., "Chinchilla scaling: a replication attempt", 2024. The published ones were
    // rounded, and give another optimum (D / N about 50 at 1e21 FLOPs).
    double A = 482.01, B = 2085.43, E = 1.8172, a = 0.3478, b = 0.3658;

    double loss(double parameters, double tokens) const;
    struct Optimum {
        double parameters, tokens, loss;
    };
    Optimum optimum(double flops) const;
};

// A finished run.
struct ScalingRun {
    double parameters, tokens, loss;
};
// Fits the law to runs: minimises the sum of Huber losses (delta 1e-3) of log L, as both papers do, from several
// starts. Throws Error(usage) for fewer than five runs, or runs that all have one size or one number of tokens.
inline ScalingLaw fit_scaling_law(const std::vector<ScalingRun>& runs);

// ---------------------------------------------------------------------------------------------------------------------

inline double ScalingLaw::loss(double parameters, double tokens) const {
    return E + A / std::pow(parameters, a) + B / std::pow(tokens, b);
}

inline ScalingLaw::Optimum ScalingLaw::optimum(double flops) const {
    const double G = std::pow(a * A / (b * B), 1 / (a + b));
    const double N = G * std::pow(flops / 6, b / (a + b)), D = flops / 6 / N;
    return {N, D, loss(N, D)};
}

namespace scaling_law_fit {

// log A, log B, log E, a, b: the logarithms keep A, B and E above 0.
using Point = std::array<double, 5>;

inline ScalingLaw law_of(const Point& p) {
    return {.A = std::exp(p[0]), .B = std::exp(p[1]), .E = std::exp(p[2]), .a = p[3], .b = p[4]};
}

inline double misfit(const Point& p, const std::vector<ScalingRun>& runs) {
    constexpr double delta = 1e-3;
    const ScalingLaw law = law_of(p);
    double sum = 0;
    for (const ScalingRun& run : runs) {
        const double r = std::abs(std::log(law.loss(run.parameters, run.tokens)) - std::log(run.loss));
        sum += r <= delta ? r * r / 2 : delta * (r - delta / 2);
    }
    return std::isfinite(sum) ? sum : 1e30;
}

// Minimises with Nelder and Mead's simplex, restarted from its end until that changes nothing.
inline Point nearest(Point start, const std::vector<ScalingRun>& runs) {
    struct Corner {
        Point at;
        double value;
    };
    auto corner = [&](const Point& at) { return Corner{at, misfit(at, runs)}; };
    auto between = [](const Point& from, const Point& to, double t) {
        Point result;
        for (std::size_t i = 0; i < result.size(); i++) result[i] = from[i] + t * (to[i] - from[i]);
        return result;
    };
    double before = 1e30;
    for (int round = 0; round < 40; round++) {
        std::array<Corner, 6> simplex;
        simplex[0] = corner(start);
        for (std::size_t i = 0; i < start.size(); i++) {
            Point moved = start;
            moved[i] += i < 3 ? 0.5 : 0.05;
            simplex[i + 1] = corner(moved);
        }
        for (int step = 0; step < 2000; step++) {
            std::ranges::sort(simplex, {}, &Corner::value);
            if (simplex[5].value - simplex[0].value < 1e-15) break;
            Point middle{};
            for (std::size_t i = 0; i < 5; i++) {
                for (std::size_t k = 0; k < 5; k++) middle[k] += simplex[i].at[k] / 5;
            }
            Corner& worst = simplex[5];
            Corner reflected = corner(between(middle, worst.at, -1));
            if (reflected.value < simplex[0].value) {
                const Corner further = corner(between(middle, worst.at, -2));
                worst = further.value < reflected.value ? further : reflected;
            } else if (reflected.value < simplex[4].value) {
                worst = reflected;
            } else {
                const Corner closer = corner(between(middle, worst.at, reflected.value < worst.value ? -0.5 : 0.5));
                if (closer.value < std::min(worst.value, reflected.value)) {
                    worst = closer;
                } else {
                    for (std::size_t i = 1; i < 6; i++) simplex[i] = corner(between(simplex[0].at, simplex[i].at, 0.5));
                }
            }
        }
        std::ranges::sort(simplex, {}, &Corner::value);
        start = simplex[0].at;
        if (before - simplex[0].value < 1e-14) break;
        before = simplex[0].value;
    }
    return start;
}

}   // namespace scaling_law_fit

inline ScalingLaw fit_scaling_law(const std::vector<ScalingRun>& runs) {
    using namespace scaling_law_fit;
    std::set<double> sizes, lengths;
    for (const ScalingRun& run : runs) sizes.insert(run.parameters), lengths.insert(run.tokens);
    if (runs.size() < 5 || sizes.size() < 2 || lengths.size() < 2) {
        throw Error(ErrorKind::usage,
                    text("a scaling law of five constants from ", runs.size(), " runs of ", sizes.size(), " sizes and ",
                         lengths.size(), " numbers of tokens"),
                    "Give five runs or more, of several sizes and lengths.");
    }
    Point best{};
    double least = 1e31;
    for (const double logarithm : {2.0, 6.0, 10.0}) {
        for (const double e : {-0.5, 0.0, 0.6}) {
            for (const double power : {0.2, 0.35, 0.6}) {
                const Point found = nearest({logarithm, logarithm, e, power, power}, runs);
                if (const double value = misfit(found, runs); value < least) least = value, best = found;
            }
        }
    }
    return law_of(best);
}
