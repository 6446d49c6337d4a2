// Layers in plain double-precision loops, for tests only: linear, norms, activations, attention and rotary positions,
// forward and backward, and the trace of experts. reference_gpt_testing.h puts them together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "llmc/model/config.h"

using Doubles = std::vector<double>;

namespace reference {

using Index = std::size_t;

// out (R, N) = in (R, K) weight (N, K)^T + bias (N)
inline Doubles linear(const Doubles& in, const Doubles& weight, const Doubles& bias, Index R, Index N, Index K) {
    Doubles out(R * N);
    for (Index r = 0; r < R; r++) {
        for (Index n = 0; n < N; n++) {
            double sum = bias.empty() ? 0.0 : bias[n];
            for (Index k = 0; k < K; k++) sum += in[r * K + k] * weight[n * K + k];
            out[r * N + n] = sum;
        }
    }
    return out;
}

// Returns din; adds to dweight and (unless null) dbias.
inline Doubles linear_backward(Doubles& dweight, Doubles* dbias, const Doubles& dout, const Doubles& in,
                               const Doubles& weight, Index R, Index N, Index K) {
    Doubles din(R * K, 0.0);
    for (Index r = 0; r < R; r++) {
        for (Index n = 0; n < N; n++) {
            const double d = dout[r * N + n];
            for (Index k = 0; k < K; k++) {
                din[r * K + k] += d * weight[n * K + k];
                dweight[n * K + k] += d * in[r * K + k];
            }
            if (dbias) (*dbias)[n] += d;
        }
    }
    return din;
}

struct Moments {
    double mean, rstd;
};

// Returns the mean and 1 / deviation; under RMSNorm the mean counts as zero.
inline Moments moments(const double* x, Index C, bool rms, double epsilon) {
    double mean = 0, variance = 0;
    for (Index c = 0; c < C && !rms; c++) mean += x[c] / static_cast<double>(C);
    for (Index c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(C);
    if (epsilon < 0) return {mean, 1.0 / (std::sqrt(variance) - epsilon)};   // a mistake that tests must see
    return {mean, 1.0 / std::sqrt(variance + epsilon)};
}

// Layer normalisation, or without a bias RMSNorm.
inline Doubles norm(const Doubles& in, const Doubles& weight, const Doubles* bias, Index R, Index C, double epsilon) {
    Doubles out(R * C);
    for (Index r = 0; r < R; r++) {
        const Moments m = moments(&in[r * C], C, bias == nullptr, epsilon);
        for (Index c = 0; c < C; c++) {
            out[r * C + c] = (in[r * C + c] - m.mean) * m.rstd * weight[c] + (bias ? (*bias)[c] : 0.0);
        }
    }
    return out;
}

// Returns din; adds to dweight and dbias.
inline Doubles norm_backward(Doubles& dweight, Doubles* dbias, const Doubles& dout, const Doubles& in,
                             const Doubles& weight, Index R, Index C, double epsilon) {
    Doubles din(R * C);
    for (Index r = 0; r < R; r++) {
        const Moments m = moments(&in[r * C], C, dbias == nullptr, epsilon);
        double sum = 0, projection = 0;   // means over the row of dnorm and of dnorm * norm
        for (Index c = 0; c < C; c++) {
            const double n = (in[r * C + c] - m.mean) * m.rstd, d = dout[r * C + c];
            dweight[c] += d * n;
            if (dbias) (*dbias)[c] += d;
            if (dbias) sum += d * weight[c] / static_cast<double>(C);
            projection += d * weight[c] * n / static_cast<double>(C);
        }
        for (Index c = 0; c < C; c++) {
            const double n = (in[r * C + c] - m.mean) * m.rstd;
            din[r * C + c] = m.rstd * (dout[r * C + c] * weight[c] - sum - n * projection);
        }
    }
    return din;
}

constexpr double gelu_cubic = 0.044715;
inline double gelu_slope() { return std::sqrt(2.0 / std::acos(-1.0)); }
inline double gelu(double x) { return 0.5 * x * (1.0 + std::tanh(gelu_slope() * (x + gelu_cubic * x * x * x))); }
inline double gelu_derivative(double x) {
    const double t = std::tanh(gelu_slope() * (x + gelu_cubic * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * gelu_slope() * (1.0 + 3.0 * gelu_cubic * x * x);
}

inline double relu2(double x) { return x > 0 ? x * x : 0; }
inline double relu2_derivative(double x) { return x > 0 ? 2 * x : 0; }

// silu(gate) * up of rows of F gates and F ups.
inline double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline Doubles swiglu(const Doubles& in, Index R, Index F, bool exchanged = false) {
    Doubles out(R * F);
    for (Index i = 0; i < R * F; i++) {
        const double gate = in[i / F * 2 * F + i % F], up = in[i / F * 2 * F + F + i % F];
        out[i] = exchanged ? up * logistic(up) * gate : gate * logistic(gate) * up;
    }
    return out;
}
inline Doubles swiglu_backward(const Doubles& dout, const Doubles& in, Index R, Index F) {
    Doubles din(R * 2 * F);
    for (Index i = 0; i < R * F; i++) {
        const Index at = i / F * 2 * F + i % F;
        const double gate = in[at], up = in[at + F], s = logistic(gate);
        din[at] = dout[i] * up * (s + gate * s * (1.0 - s));
        din[at + F] = dout[i] * gate * s;
    }
    return din;
}

struct AttentionSizes {
    Index B, T, NH, KV, HS;   // head h of q reads head h / (NH / KV) of k and v
    Index window = 0;         // keys that a query sees at most; 0: all before it
    Index C() const { return NH * HS; }
    Index width() const { return (NH + 2 * KV) * HS; }
    // Element of part 0, 1, 2 of query head h (q, and the k and v that it reads) in qkv, (B, T, NH + KV + KV, HS); and
    // of a (B, T, NH, HS) tensor.
    Index packed(Index b, Index t, Index part, Index h, Index c) const {
        const Index head = part == 0 ? h : NH + (part - 1) * KV + h / (NH / KV);
        return (b * T + t) * width() + head * HS + c;
    }
    Index separate(Index b, Index t, Index h, Index c) const { return ((b * T + t) * NH + h) * HS + c; }
};

// Softmax of the scores of query t with keys 0 ... t of one head; 0 for keys before the window.
inline Doubles attention_row(const Doubles& qkv, const AttentionSizes& s, Index b, Index h, Index t) {
    Doubles p(t + 1);
    double most = -INFINITY, sum = 0;
    for (Index u = 0; u <= t; u++) {
        double score = 0;
        for (Index c = 0; c < s.HS; c++) score += qkv[s.packed(b, t, 0, h, c)] * qkv[s.packed(b, u, 1, h, c)];
        p[u] = score / std::sqrt(static_cast<double>(s.HS));
        if (s.window > 0 && u + s.window <= t) p[u] = -INFINITY;
        most = std::fmax(most, p[u]);
    }
    for (double& x : p) sum += x = std::exp(x - most);
    for (double& x : p) x /= sum;
    return p;
}

inline Doubles attention(const Doubles& qkv, const AttentionSizes& s) {
    Doubles out(s.B * s.T * s.C(), 0.0);
    for (Index b = 0; b < s.B; b++) {
        for (Index h = 0; h < s.NH; h++) {
            for (Index t = 0; t < s.T; t++) {
                const Doubles p = attention_row(qkv, s, b, h, t);
                for (Index u = 0; u <= t; u++) {
                    for (Index c = 0; c < s.HS; c++) out[s.separate(b, t, h, c)] += p[u] * qkv[s.packed(b, u, 2, h, c)];
                }
            }
        }
    }
    return out;
}

inline Doubles attention_backward(const Doubles& dout, const Doubles& qkv, const AttentionSizes& s) {
    Doubles dqkv(qkv.size(), 0.0);
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.HS));
    for (Index b = 0; b < s.B; b++) {
        for (Index h = 0; h < s.NH; h++) {
            for (Index t = 0; t < s.T; t++) {
                const Doubles p = attention_row(qkv, s, b, h, t);
                Doubles dp(t + 1, 0.0);
                double mean = 0;
                for (Index u = 0; u <= t; u++) {
                    for (Index c = 0; c < s.HS; c++) {
                        const double d = dout[s.separate(b, t, h, c)];
                        dp[u] += d * qkv[s.packed(b, u, 2, h, c)];
                        dqkv[s.packed(b, u, 2, h, c)] += d * p[u];
                    }
                    mean += p[u] * dp[u];
                }
                for (Index u = 0; u <= t; u++) {
                    const double dscore = p[u] * (dp[u] - mean) * scale;
                    for (Index c = 0; c < s.HS; c++) {
                        dqkv[s.packed(b, t, 0, h, c)] += dscore * qkv[s.packed(b, u, 1, h, c)];
                        dqkv[s.packed(b, u, 1, h, c)] += dscore * qkv[s.packed(b, t, 0, h, c)];
                    }
                }
            }
        }
    }
    return dqkv;
}

// Turns the pairs (i, i + HS / 2) of each head of q and k by their position times a frequency; backward: by minus that.
inline void rotary(Doubles& qkv, const AttentionSizes& s, const ModelConfig& config, Index layer, bool backward) {
    if (!config.rotates(layer)) return;
    const bool of_window = config.slides(layer) && config.rope_window_theta > 0;   // with a base of its own
    const double theta = of_window ? config.rope_window_theta : config.rope_theta;
    const RopeScaling scaling = of_window ? RopeScaling::none : config.rope_scaling;
    const double two_pi = 2.0 * std::acos(-1.0), factor = config.rope_factor;
    const double low = config.rope_low_freq_factor, high = config.rope_high_freq_factor;
    const auto trained = static_cast<double>(config.rope_original_len());
    const bool yarn = scaling == RopeScaling::yarn;
    auto pair_of = [&](double turns) {   // YaRN's pair with so many turns over `trained`
        return static_cast<double>(s.HS) * std::log(trained / (two_pi * turns)) / (2.0 * std::log(theta));
    };
    const double fast = std::max(0.0, std::floor(pair_of(config.rope_beta_fast)));
    double slow = std::min(static_cast<double>(s.HS - 1), std::ceil(pair_of(config.rope_beta_slow)));
    if (slow == fast) slow += 0.001;
    const double given = config.rope_attention_factor;
    const double scale = !yarn ? 1.0 : given > 0 ? given : 1.0 + std::log(factor) / 10.0;
    for (Index row = 0; row < s.B * s.T; row++) {
        for (Index pair = 0; pair < s.HS / 2; pair++) {
            double frequency = std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(s.HS));
            if (scaling == RopeScaling::linear) frequency /= factor;
            if (yarn) {
                const double divided = std::min(1.0, std::max(0.0, (static_cast<double>(pair) - fast) / (slow - fast)));
                frequency = divided * frequency / factor + (1.0 - divided) * frequency;
            }
            if (scaling == RopeScaling::llama3) {
                const double wavelength = two_pi / frequency, mixed = (trained / wavelength - low) / (high - low);
                if (wavelength > trained / low) {
                    frequency /= factor;
                } else if (wavelength > trained / high) {
                    frequency = (1.0 - mixed) * frequency / factor + mixed * frequency;
                }
            }
            const double angle = static_cast<double>(row % s.T) * frequency * (backward ? -1.0 : 1.0);
            for (Index head = 0; head < s.NH + s.KV; head++) {
                double &x = qkv[row * s.width() + head * s.HS + pair],
                       &y = qkv[row * s.width() + head * s.HS + pair + s.HS / 2];
                const double turned = x * std::cos(angle) - y * std::sin(angle);
                y = scale * (y * std::cos(angle) + x * std::sin(angle));
                x = scale * turned;
            }
        }
    }
}

// Trace of a layer of experts: per expert (R, E), per chosen one (R, K), all tokens of each expert.
struct ExpertsTrace {
    Doubles logits, scores, probabilities, lse, weights, counts;
    std::vector<Index> chosen;   // ascending for each token
    std::vector<bool> dropped;   // an expert did not take the token
    std::vector<Doubles> hidden, activated, outputs;
    Doubles shared_hidden, shared_activated;
    double loss = 0;
};

inline void add_to(Doubles& a, const Doubles& b) {
    for (Index i = 0; i < a.size(); i++) a[i] += b[i];
}

}   // namespace reference
