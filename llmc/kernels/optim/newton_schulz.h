// Makes a matrix nearly orthogonal by five Newton-Schulz iterations, the heart of Muon (Jordan et al., "Muon: an
// optimizer for hidden layers in neural networks", 2024): singular values come near 1, singular vectors stay.
//
//   X = a X + (b A + c A^2) X     A = X X^T; of tall matrices from the right: X = X (a I + b A + c A^2), A = X^T X
//
// The first X has the norm 1 or a little less. After five iterations a singular value that was in [0.01, 1] is in
//   simple         0.682 to 1.134    Jordan's
//   quintic        0.978 to 1.032    another polynomial in each iteration
//   polar-express  0.859 to 1.141    Amsel et al., "The Polar Express", 2025: the best for values far below 0.01
// The kernels: newton_schulz.cuh.
#pragma once

#include <array>
#include <cstdint>

enum class MuonCoefficients : std::uint8_t { simple, quintic, polar_express };

struct Polynomial {
    float a, b, c;
};

struct NewtonSchulz {
    float norm_scale, norm_epsilon;   // the first X is U / (norm_scale |U| + norm_epsilon)
    std::array<Polynomial, 5> iterations;
};

constexpr NewtonSchulz newton_schulz(MuonCoefficients which) {
    constexpr Polynomial jordan{3.4445f, -4.7750f, 2.0315f};
    constexpr NewtonSchulz simple{1.0f, 1e-7f, {jordan, jordan, jordan, jordan, jordan}};
    constexpr NewtonSchulz quintic{1.0f,
                                   1e-7f,
                                   {{{4.0848f, -6.8946f, 2.9270f},
                                     {3.9505f, -6.3029f, 2.6377f},
                                     {3.7418f, -5.5913f, 2.3037f},
                                     {2.8769f, -3.1427f, 1.2046f},
                                     {2.8366f, -3.0525f, 1.2012f}}}};
    constexpr NewtonSchulz polar_express{1.02f,
                                         1e-6f,
                                         {{{8.1566f, -22.4833f, 15.8788f},
                                           {4.0429f, -2.8089f, 0.5000f},
                                           {3.8917f, -2.7725f, 0.5061f},
                                           {3.2858f, -2.3681f, 0.4645f},
                                           {2.3465f, -1.7098f, 0.4232f}}}};
    return which == MuonCoefficients::simple ? simple : which == MuonCoefficients::quintic ? quintic : polar_express;
}
