// A GPT in plain double-precision loops, for tests only: what the program must agree with.
//
// Written to be read, not to be fast, and sharing no arithmetic with the program: no matmul library, no fused softmax,
// attention with its full matrix of probabilities. Itself checked by central differences (reference_gpt_test.cpp) and
// against an independent implementation (dev/reference/).
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "llmc/model/parameters/param_table.h"

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

constexpr double layernorm_epsilon = 1e-5;

struct Moments {
    double mean, rstd;
};

// Of RMSNorm the mean counts as zero.
inline Moments moments(const double* x, Index C, bool rms) {
    double mean = 0, variance = 0;
    for (Index c = 0; c < C && !rms; c++) mean += x[c] / static_cast<double>(C);
    for (Index c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(C);
    return {mean, 1.0 / std::sqrt(variance + layernorm_epsilon)};
}

// Layer normalisation, or without a bias RMSNorm.
inline Doubles norm(const Doubles& in, const Doubles& weight, const Doubles* bias, Index R, Index C) {
    Doubles out(R * C);
    for (Index r = 0; r < R; r++) {
        const Moments m = moments(&in[r * C], C, bias == nullptr);
        for (Index c = 0; c < C; c++) {
            out[r * C + c] = (in[r * C + c] - m.mean) * m.rstd * weight[c] + (bias ? (*bias)[c] : 0.0);
        }
    }
    return out;
}

// Returns din; adds to dweight and dbias.
inline Doubles norm_backward(Doubles& dweight, Doubles* dbias, const Doubles& dout, const Doubles& in,
                             const Doubles& weight, Index R, Index C) {
    Doubles din(R * C);
    for (Index r = 0; r < R; r++) {
        const Moments m = moments(&in[r * C], C, dbias == nullptr);
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

struct AttentionSizes {
    Index B, T, NH, HS;
    Index C() const { return NH * HS; }
    // Element of part 0, 1, 2 (q, k, v) in qkv (B, T, 3, NH, HS); and of a (B, T, NH, HS) tensor.
    Index packed(Index b, Index t, Index part, Index h, Index c) const {
        return (((b * T + t) * 3 + part) * NH + h) * HS + c;
    }
    Index separate(Index b, Index t, Index h, Index c) const { return ((b * T + t) * NH + h) * HS + c; }
};

// Softmax of the scores of query t with keys 0 ... t of one head.
inline Doubles attention_row(const Doubles& qkv, const AttentionSizes& s, Index b, Index h, Index t) {
    Doubles p(t + 1);
    double most = -INFINITY, sum = 0;
    for (Index u = 0; u <= t; u++) {
        double score = 0;
        for (Index c = 0; c < s.HS; c++) score += qkv[s.packed(b, t, 0, h, c)] * qkv[s.packed(b, u, 1, h, c)];
        p[u] = score / std::sqrt(static_cast<double>(s.HS));
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

inline void add_to(Doubles& a, const Doubles& b) {
    for (Index i = 0; i < a.size(); i++) a[i] += b[i];
}

}   // namespace reference

struct ReferenceResult {
    Doubles logits;                   // (R, V), without the vocabulary's padding
    Doubles losses;                   // (R)
    double loss = 0;                  // their sum / R
    std::vector<Doubles> gradients;   // of `loss`, indexed as the ParamTable, global shapes; empty after forward
};

class ReferenceGpt {
public:
    explicit ReferenceGpt(const ModelConfig& config) : table(config) {
        for (const ParamInfo& param : table.all()) {
            parameters.emplace_back(static_cast<std::size_t>(param.tensor.elements()), 0.0);
        }
    }

    ParamTable table;
    std::vector<Doubles> parameters;   // indexed as the table, global shapes

    // B sequences of T tokens. A negative target has no loss (but counts in R = B T).
    ReferenceResult forward(std::span<const int> tokens, std::span<const int> targets, int B, int T) const {
        Trace trace;
        return forward(tokens, targets, B, T, trace);
    }
    ReferenceResult forward_backward(std::span<const int> tokens, std::span<const int> targets, int B, int T) const {
        Trace trace;
        ReferenceResult result = forward(tokens, targets, B, T, trace);
        backward(result, tokens, targets, B, T, trace);
        return result;
    }

private:
    using Index = reference::Index;
    struct BlockTrace {
        Doubles input, ln1, qkv, atty, residual2, ln2, fch, fch_gelu;
    };
    struct Trace {
        std::vector<BlockTrace> blocks;
        Doubles output, lnf;   // of the last block; normalised
    };

    const Doubles& classifier() const { return parameters[static_cast<std::size_t>(table.classifier())]; }
    const Doubles& at(std::string_view name, int layer = -1) const {
        return parameters[static_cast<std::size_t>(table.index(name, layer))];
    }
    const Doubles* bias(std::string_view name, int layer = -1) const {   // null: there is none
        return table.find(name, layer) < 0 ? nullptr : &at(name, layer);
    }
    Index C() const { return static_cast<Index>(table.config().channels); }
    Index V() const { return static_cast<Index>(table.config().vocab_size); }
    int layers() const { return static_cast<int>(table.config().layers); }
    reference::AttentionSizes attention_sizes(int B, int T) const {
        return {static_cast<Index>(B), static_cast<Index>(T), static_cast<Index>(table.config().heads),
                static_cast<Index>(table.config().head_size())};
    }

    Doubles block_forward(BlockTrace& b, int l, int B, int T) const {
        using namespace reference;
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        b.ln1 = norm(b.input, at("ln_1.weight", l), bias("ln_1.bias", l), R, C());
        b.qkv = linear(b.ln1, at("attn.c_attn.weight", l), at("attn.c_attn.bias", l), R, 3 * C(), C());
        b.atty = attention(b.qkv, attention_sizes(B, T));
        b.residual2 = linear(b.atty, at("attn.c_proj.weight", l), at("attn.c_proj.bias", l), R, C(), C());
        add_to(b.residual2, b.input);
        b.ln2 = norm(b.residual2, at("ln_2.weight", l), bias("ln_2.bias", l), R, C());
        b.fch = linear(b.ln2, at("mlp.c_fc.weight", l), at("mlp.c_fc.bias", l), R, 4 * C(), C());
        b.fch_gelu = b.fch;
        for (double& x : b.fch_gelu) x = gelu(x);
        Doubles output = linear(b.fch_gelu, at("mlp.c_proj.weight", l), at("mlp.c_proj.bias", l), R, C(), 4 * C());
        add_to(output, b.residual2);
        return output;
    }

    ReferenceResult forward(std::span<const int> tokens, std::span<const int> targets, int B, int T,
                            Trace& trace) const {
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        Doubles stream(R * C());
        for (Index r = 0; r < R; r++) {
            const Index token = static_cast<Index>(tokens[r]), position = r % static_cast<Index>(T);
            for (Index c = 0; c < C(); c++) {
                stream[r * C() + c] = at("wte.weight")[token * C() + c] + at("wpe.weight")[position * C() + c];
            }
        }
        trace.blocks.resize(static_cast<std::size_t>(layers()));
        for (int l = 0; l < layers(); l++) {
            BlockTrace& block = trace.blocks[static_cast<std::size_t>(l)];
            block.input = stream;
            stream = block_forward(block, l, B, T);
        }
        trace.output = stream;
        trace.lnf = reference::norm(stream, at("ln_f.weight"), bias("ln_f.bias"), R, C());

        ReferenceResult result;
        result.logits = reference::linear(trace.lnf, classifier(), {}, R, V(), C());
        result.losses.assign(R, 0.0);
        for (Index r = 0; r < R; r++) {
            if (targets[r] < 0) continue;
            const double* row = &result.logits[r * V()];
            double most = row[0], sum = 0;
            for (Index v = 0; v < V(); v++) most = std::fmax(most, row[v]);
            for (Index v = 0; v < V(); v++) sum += std::exp(row[v] - most);
            result.losses[r] = most + std::log(sum) - row[targets[r]];
            result.loss += result.losses[r] / static_cast<double>(R);
        }
        return result;
    }

    // dstream: in, the gradient of the block's output; out, that of its input.
    void block_backward(Doubles& dstream, std::vector<Doubles>& gradients, const BlockTrace& b, int l, int B,
                        int T) const {
        using namespace reference;
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        auto d = [&](std::string_view name) -> Doubles& {
            return gradients[static_cast<std::size_t>(table.index(name, l))];
        };
        auto dbias = [&](std::string_view name) { return table.find(name, l) < 0 ? nullptr : &d(name); };

        Doubles dfch = linear_backward(d("mlp.c_proj.weight"), &d("mlp.c_proj.bias"), dstream, b.fch_gelu,
                                       at("mlp.c_proj.weight", l), R, C(), 4 * C());
        for (Index i = 0; i < dfch.size(); i++) dfch[i] *= gelu_derivative(b.fch[i]);
        Doubles dln2 = linear_backward(d("mlp.c_fc.weight"), &d("mlp.c_fc.bias"), dfch, b.ln2, at("mlp.c_fc.weight", l),
                                       R, 4 * C(), C());
        add_to(dstream,
               norm_backward(d("ln_2.weight"), dbias("ln_2.bias"), dln2, b.residual2, at("ln_2.weight", l), R, C()));

        Doubles datty = linear_backward(d("attn.c_proj.weight"), &d("attn.c_proj.bias"), dstream, b.atty,
                                        at("attn.c_proj.weight", l), R, C(), C());
        Doubles dqkv = attention_backward(datty, b.qkv, attention_sizes(B, T));
        Doubles dln1 = linear_backward(d("attn.c_attn.weight"), &d("attn.c_attn.bias"), dqkv, b.ln1,
                                       at("attn.c_attn.weight", l), R, 3 * C(), C());
        add_to(dstream,
               norm_backward(d("ln_1.weight"), dbias("ln_1.bias"), dln1, b.input, at("ln_1.weight", l), R, C()));
    }

    void backward(ReferenceResult& result, std::span<const int> tokens, std::span<const int> targets, int B, int T,
                  const Trace& trace) const {
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        std::vector<Doubles>& gradients = result.gradients;
        for (const Doubles& p : parameters) gradients.emplace_back(p.size(), 0.0);
        auto d = [&](std::string_view name) -> Doubles& {
            return gradients[static_cast<std::size_t>(table.index(name))];
        };
        auto dbias = [&](std::string_view name) { return table.find(name) < 0 ? nullptr : &d(name); };

        Doubles dlogits(R * V(), 0.0);
        for (Index r = 0; r < R; r++) {
            if (targets[r] < 0) continue;
            const Index target = static_cast<Index>(targets[r]);
            const double log_sum = result.losses[r] + result.logits[r * V() + target];
            for (Index v = 0; v < V(); v++) {
                const double p = std::exp(result.logits[r * V() + v] - log_sum);
                dlogits[r * V() + v] = (p - (v == target ? 1.0 : 0.0)) / static_cast<double>(R);
            }
        }
        Doubles dlnf = reference::linear_backward(gradients[static_cast<std::size_t>(table.classifier())], nullptr,
                                                  dlogits, trace.lnf, classifier(), R, V(), C());
        Doubles dstream = reference::norm_backward(d("ln_f.weight"), dbias("ln_f.bias"), dlnf, trace.output,
                                                   at("ln_f.weight"), R, C());
        for (int l = layers() - 1; l >= 0; l--) {
            block_backward(dstream, gradients, trace.blocks[static_cast<std::size_t>(l)], l, B, T);
        }
        for (Index r = 0; r < R; r++) {
            const Index token = static_cast<Index>(tokens[r]), position = r % static_cast<Index>(T);
            for (Index c = 0; c < C(); c++) {
                d("wte.weight")[token * C() + c] += dstream[r * C() + c];
                d("wpe.weight")[position * C() + c] += dstream[r * C() + c];
            }
        }
    }
};
