// A GPT in plain double-precision loops, for tests only: what the program must agree with.
//
// Written to be read, not to be fast, and sharing no arithmetic with the program: no matmul library, no fused softmax,
// attention with its full matrix of probabilities. Itself checked by central differences (reference_gpt_test.cpp) and
// against an independent implementation (dev/reference/).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "dev/test/reference/reference_layers_testing.h"
#include "llmc/model/parameters/param_table.h"

// A model of Llama's kind: RMSNorm, rotary positions, SwiGLU, no biases; groups of heads share keys and values.
inline ModelConfig llama_like(ModelConfig config, std::int64_t kv_heads) {
    config.norm = NormKind::rms;
    config.norm_eps = 1e-6;
    config.positions = PositionKind::rotary;
    config.rope_theta = 500;
    config.mlp = MlpKind::swiglu;
    config.bias = Bias::none;
    config.own_kv_heads = kv_heads;
    return config;
}

// A mixture of experts in place of the MLP.
inline ModelConfig with_experts(ModelConfig config, std::int64_t experts, std::int64_t per_token, std::int64_t width) {
    config.experts = experts, config.own_experts_per_token = per_token, config.own_expert_width = width;
    return config;
}

struct ReferenceResult {
    Doubles logits;                   // (R, V), without the vocabulary's padding
    Doubles losses;                   // (R)
    double loss = 0;                  // their sum / R, and the routers' losses
    std::vector<Doubles> gradients;   // d `loss`, indexed as the ParamTable, global shapes; empty after forward
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
    double z_loss = 0;                 // c: c lse^2 is added to each loss
    Doubles router_bias;               // (L, E), by which a sigmoid router chooses; empty: zeros
    // Smallest gap between a token's last chosen expert and the next one, in logits.
    mutable double smallest_gap = INFINITY;
    // Most tokens that an expert takes of each `capacity_group` consecutive ones, the first that come; 0: all.
    std::size_t capacity = 0, capacity_group = 0;
    mutable std::size_t dropped = 0;   // that experts did not take, in all layers and forwards
    // Mistakes of forward, which tests must see.
    bool exchanges_gate_and_up = false, adds_epsilon_outside = false, weighs_with_bias = false;

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
        Doubles input, ln1, raw_qkv, qkv, atty, attproj, residual2, ln2, fch, fch_act, fcproj;
        reference::ExpertsTrace experts;
    };
    struct Trace {
        std::vector<BlockTrace> blocks;
        Doubles output, lnf, lse;   // last block's output; normed; log-sum-exp of the logits
    };

    const Doubles& classifier() const { return parameters[static_cast<std::size_t>(table.classifier())]; }
    const Doubles& at(std::string_view name, int layer = -1) const {
        return parameters[static_cast<std::size_t>(table.index(name, layer))];
    }
    const Doubles* bias(std::string_view name, int layer = -1) const {   // null: there is none
        return table.find(name, layer) < 0 ? nullptr : &at(name, layer);
    }
    Index C() const { return static_cast<Index>(table.config().channels); }
    Index F() const { return static_cast<Index>(table.config().mlp_width()); }
    Index V() const { return static_cast<Index>(table.config().vocab_size); }
    int layers() const { return static_cast<int>(table.config().layers); }
    bool norm_after() const { return table.config().norm_position == NormPosition::after; }
    // Layer -1: without windows.
    reference::AttentionSizes attention_sizes(int B, int T, int layer = -1) const {
        const ModelConfig& c = table.config();
        return {static_cast<Index>(B),
                static_cast<Index>(T),
                static_cast<Index>(c.heads),
                static_cast<Index>(c.kv_heads()),
                static_cast<Index>(c.head_size()),
                static_cast<Index>(layer >= 0 && c.slides(layer) ? c.window : 0)};
    }
    void turn(Doubles& qkv, int B, int T, int layer, bool backward) const {
        reference::rotary(qkv, attention_sizes(B, T), table.config(), layer, backward);
    }
    // Runs a linear layer: outputs (R, N) of inputs (R, K).
    Doubles linear(const Doubles& in, const std::string& name, int l, Index R) const {
        const ParamInfo& weight = table[table.index(name + ".weight", l)];
        const Doubles* const b = bias(name + ".bias", l);
        return reference::linear(in, at(name + ".weight", l), b ? *b : Doubles(), R,
                                 static_cast<Index>(weight.tensor.rows), static_cast<Index>(weight.tensor.cols));
    }
    // visit(name of the norm's weight, first element, elements) for every head of q and k of every row, or for all.
    template <class Visit>
    void visit_normed_heads(Index R, Visit&& visit) const {
        const reference::AttentionSizes s = attention_sizes(1, static_cast<int>(R));
        if (table.config().qk_norm == QkNorm::none) return;
        for (Index row = 0; row < R && table.config().qk_norm == QkNorm::row; row++) {
            visit("attn.q_norm.weight", row * s.width(), s.NH * s.HS);
            visit("attn.k_norm.weight", row * s.width() + s.NH * s.HS, s.KV * s.HS);
        }
        if (table.config().qk_norm == QkNorm::row) return;
        for (Index head = 0; head < R * (s.NH + s.KV); head++) {
            const Index row = head / (s.NH + s.KV), at_head = head % (s.NH + s.KV);
            visit(at_head < s.NH ? "attn.q_norm.weight" : "attn.k_norm.weight", row * s.width() + at_head * s.HS, s.HS);
        }
    }
    void norm_heads(Doubles& qkv, int l, Index R) const {
        visit_normed_heads(R, [&](const char* name, Index first, Index HS) {
            const auto from = qkv.begin() + static_cast<std::ptrdiff_t>(first);
            const Doubles head(from, from + static_cast<std::ptrdiff_t>(HS));
            std::ranges::copy(reference::norm(head, at(name, l), nullptr, 1, HS, table.config().norm_eps), from);
        });
    }
    void norm_heads_backward(Doubles& dqkv, std::vector<Doubles>& gradients, const Doubles& raw, int l, Index R) const {
        visit_normed_heads(R, [&](const char* name, Index first, Index HS) {
            const auto from = dqkv.begin() + static_cast<std::ptrdiff_t>(first);
            const auto in = raw.begin() + static_cast<std::ptrdiff_t>(first);
            const Doubles d(from, from + static_cast<std::ptrdiff_t>(HS)), x(in, in + static_cast<std::ptrdiff_t>(HS));
            Doubles& dweight = gradients[static_cast<std::size_t>(table.index(name, l))];
            std::ranges::copy(
                reference::norm_backward(dweight, nullptr, d, x, at(name, l), 1, HS, table.config().norm_eps), from);
        });
    }
    Doubles norm(const Doubles& in, const std::string& name, int l, Index R) const {
        const double epsilon = table.config().norm_eps * (adds_epsilon_outside ? -1 : 1);
        return reference::norm(in, at(name + ".weight", l), bias(name + ".bias", l), R, C(), epsilon);
    }

    Doubles block_forward(BlockTrace& b, int l, int B, int T) const {
        using namespace reference;
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        const bool after = norm_after();
        b.ln1 = after ? b.input : norm(b.input, "ln_1", l, R);
        b.raw_qkv = b.qkv = linear(b.ln1, "attn.c_attn", l, R);
        norm_heads(b.qkv, l, R);
        turn(b.qkv, B, T, l, false);
        b.atty = attention(b.qkv, attention_sizes(B, T, l));
        b.attproj = linear(b.atty, "attn.c_proj", l, R);
        b.residual2 = after ? norm(b.attproj, "ln_1", l, R) : b.attproj;
        add_to(b.residual2, b.input);
        b.ln2 = after ? b.residual2 : norm(b.residual2, "ln_2", l, R);
        if (table.config().experts > 0) {
            b.fcproj = experts_forward(b.experts, b.ln2, l, B, T);
        } else {
            b.fch = linear(b.ln2, "mlp.c_fc", l, R);
            b.fch_act = activation(b.fch, R, F());
            b.fcproj = linear(b.fch_act, "mlp.c_proj", l, R);
        }
        Doubles output = after ? norm(b.fcproj, "ln_2", l, R) : b.fcproj;
        add_to(output, b.residual2);
        return output;
    }

    // ---- the MLP, and experts

    bool squares() const { return table.config().mlp == MlpKind::relu2; }
    Doubles activation(const Doubles& hidden, Index R, Index width) const {
        using namespace reference;
        if (table.config().mlp == MlpKind::swiglu) return swiglu(hidden, R, width, exchanges_gate_and_up);
        Doubles out = hidden;
        for (double& x : out) x = squares() ? relu2(x) : gelu(x);
        return out;
    }
    void activation_backward(Doubles& d, const Doubles& hidden, Index R, Index width) const {
        using namespace reference;
        if (table.config().mlp == MlpKind::swiglu) {
            d = swiglu_backward(d, hidden, R, width);
        } else {
            for (Index i = 0; i < d.size(); i++) {
                d[i] *= squares() ? relu2_derivative(hidden[i]) : gelu_derivative(hidden[i]);
            }
        }
    }
    // Rows first ... first + count of a matrix of rows of `cols`.
    static Doubles rows_of(const Doubles& matrix, Index first, Index count, Index cols) {
        const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(first * cols);
        return {begin, begin + static_cast<std::ptrdiff_t>(count * cols)};
    }
    struct ExpertSizes {
        Index E, K, F, hidden, shared;   // `hidden`: outputs of an expert's first matrix; `shared`: width of the shared
    };
    ExpertSizes expert_sizes() const {
        const ModelConfig& c = table.config();
        const auto F_ = static_cast<Index>(c.expert_width());
        return {static_cast<Index>(c.experts), static_cast<Index>(c.experts_per_token()), F_,
                (c.mlp == MlpKind::swiglu ? 2 : 1) * F_, static_cast<Index>(c.shared_experts) * F_};
    }
    // The balance loss and the z-loss of a layer's router, and how often each expert was chosen in each sequence.
    double router_losses(reference::ExpertsTrace& t, int B, int T) const {
        const ModelConfig& c = table.config();
        const ExpertSizes s = expert_sizes();
        const double tokens = T, sequences = B;
        double loss = 0;
        t.counts.assign(static_cast<Index>(B) * s.E, 0.0);
        for (Index i = 0; i < t.chosen.size(); i++) t.counts[i / s.K / static_cast<Index>(T) * s.E + t.chosen[i]]++;
        for (Index i = 0; i < t.probabilities.size(); i++) {
            const Index sequence = i / s.E / static_cast<Index>(T);
            loss += c.aux_loss * static_cast<double>(s.E) / static_cast<double>(s.K) *
                    t.counts[sequence * s.E + i % s.E] / tokens * t.probabilities[i] / tokens / sequences;
        }
        for (double lse : t.lse) loss += c.router_z_loss * lse * lse / (tokens * sequences);
        return loss;
    }
    void route(reference::ExpertsTrace& t, int l, Index R) const {
        const ModelConfig& c = table.config();
        const ExpertSizes s = expert_sizes();
        const bool sigmoid = c.router == RouterScore::sigmoid;
        for (Index r = 0; r < R; r++) {
            const double* const logits = &t.logits[r * s.E];
            double sum = 0, scores_sum = 0, weights_sum = 0;
            Doubles scores(s.E), choosing(logits, logits + s.E), weighing(s.E);
            for (Index e = 0; e < s.E; e++) sum += std::exp(logits[e]);
            for (Index e = 0; e < s.E; e++) {
                scores[e] = sigmoid ? reference::logistic(logits[e]) : std::exp(logits[e]) / sum;
                scores_sum += scores[e];
                weighing[e] = scores[e];
                if (router_bias.empty()) continue;
                choosing[e] = scores[e] + router_bias[static_cast<Index>(l) * s.E + e];
                if (weighs_with_bias) weighing[e] = choosing[e];
            }
            std::vector<Index> order(s.E);
            for (Index e = 0; e < s.E; e++) order[e] = e;
            std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return choosing[a] > choosing[b]; });
            const double in_logits = router_bias.empty() ? 1 : 4;   // a sigmoid's slope is a quarter at most
            if (s.K < s.E) {
                smallest_gap = std::fmin(smallest_gap, in_logits * (choosing[order[s.K - 1]] - choosing[order[s.K]]));
            }
            std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(s.K));
            for (Index k = 0; k < s.K; k++) weights_sum += weighing[order[k]];
            for (Index k = 0; k < s.K; k++) {
                t.chosen.push_back(order[k]);
                t.weights.push_back(c.router_scale * weighing[order[k]] / (c.router_norm ? weights_sum : 1.0));
            }
            for (double score : scores) t.probabilities.push_back(score / scores_sum);
            t.scores.insert(t.scores.end(), scores.begin(), scores.end());
            t.lse.push_back(std::log(sum));
        }
        drop(t);
    }
    // Weighs with 0 what is over an expert's capacity.
    void drop(reference::ExpertsTrace& t) const {
        const ExpertSizes s = expert_sizes();
        t.dropped.assign(t.chosen.size(), false);
        std::vector<Index> taken;
        for (Index i = 0; i < t.chosen.size() && capacity > 0; i++) {
            if (i % (capacity_group * s.K) == 0) taken.assign(s.E, 0);
            if (taken[t.chosen[i]]++ < capacity) continue;
            t.dropped[i] = true, t.weights[i] = 0;
            dropped++;
        }
    }
    // Every expert on every token, and of that the chosen ones.
    Doubles experts_forward(reference::ExpertsTrace& t, const Doubles& in, int l, int B, int T) const {
        const ExpertSizes s = expert_sizes();
        const Index R = in.size() / C();
        t = {};
        t.logits = linear(in, "mlp.router", l, R);
        route(t, l, R);
        t.loss = router_losses(t, B, T);
        Doubles out(R * C(), 0.0);
        for (Index e = 0; e < s.E; e++) {
            const Doubles fc = rows_of(at("mlp.experts.c_fc.weight", l), e * s.hidden, s.hidden, C());
            const Doubles proj = rows_of(at("mlp.experts.c_proj.weight", l), e * C(), C(), s.F);
            t.hidden.push_back(reference::linear(in, fc, {}, R, s.hidden, C()));
            t.activated.push_back(activation(t.hidden[e], R, s.F));
            t.outputs.push_back(reference::linear(t.activated[e], proj, {}, R, C(), s.F));
        }
        for (Index i = 0; i < R * s.K; i++) {
            for (Index c = 0; c < C(); c++) {
                out[i / s.K * C() + c] += t.weights[i] * t.outputs[t.chosen[i]][i / s.K * C() + c];
            }
        }
        if (s.shared > 0) {
            t.shared_hidden = linear(in, "mlp.shared.c_fc", l, R);
            t.shared_activated = activation(t.shared_hidden, R, s.shared);
            reference::add_to(out, linear(t.shared_activated, "mlp.shared.c_proj", l, R));
        }
        return out;
    }
    // The gradient of the router's logits from that of the weights.
    Doubles route_backward(const reference::ExpertsTrace& t, const Doubles& dweights, int B, int T) const {
        const ModelConfig& c = table.config();
        const ExpertSizes s = expert_sizes();
        const bool sigmoid = c.router == RouterScore::sigmoid;
        Doubles dlogits(t.logits.size(), 0.0);
        for (Index r = 0; r < t.lse.size(); r++) {
            Doubles dscores(s.E, 0.0), dprobabilities(s.E, 0.0);
            double weights_sum = 0, mean = 0, scores_sum = 0, of_probabilities = 0, of_scores = 0;
            for (Index e = 0; e < s.E; e++) scores_sum += t.scores[r * s.E + e];
            for (Index k = 0; k < s.K; k++) weights_sum += t.scores[r * s.E + t.chosen[r * s.K + k]];
            for (Index k = 0; k < s.K; k++) mean += dweights[r * s.K + k] * t.weights[r * s.K + k];
            for (Index k = 0; k < s.K; k++) {
                const double d = c.router_scale * dweights[r * s.K + k];
                dscores[t.chosen[r * s.K + k]] += c.router_norm ? (d - mean) / weights_sum : d;
            }
            for (Index e = 0; e < s.E; e++) {
                dprobabilities[e] = c.aux_loss * static_cast<double>(s.E) / static_cast<double>(s.K) *
                                    t.counts[r / static_cast<Index>(T) * s.E + e] / T / T / B;
                of_probabilities += dprobabilities[e] * t.probabilities[r * s.E + e];
            }
            for (Index e = 0; e < s.E; e++) dscores[e] += (dprobabilities[e] - of_probabilities) / scores_sum;
            for (Index e = 0; e < s.E; e++) of_scores += dscores[e] * t.scores[r * s.E + e];
            for (Index e = 0; e < s.E; e++) {
                const double score = t.scores[r * s.E + e], softmax = std::exp(t.logits[r * s.E + e] - t.lse[r]);
                dlogits[r * s.E + e] = score * (sigmoid ? dscores[e] * (1 - score) : dscores[e] - of_scores) +
                                       2 * c.router_z_loss * t.lse[r] * softmax / (B * T);
            }
        }
        return dlogits;
    }
    // Returns the gradient of what the experts read.
    Doubles experts_backward(std::vector<Doubles>& gradients, const Doubles& dout, const reference::ExpertsTrace& t,
                             const Doubles& in, int l, int B, int T) const {
        using namespace reference;
        const ExpertSizes s = expert_sizes();
        const Index R = in.size() / C();
        auto d = [&](const char* name) -> Doubles& {
            return gradients[static_cast<std::size_t>(table.index(name, l))];
        };
        Doubles dweights(R * s.K, 0.0), din(R * C(), 0.0);
        for (Index e = 0; e < s.E; e++) {
            Doubles doutput(R * C(), 0.0);
            for (Index i = 0; i < R * s.K; i++) {
                for (Index c = 0; c < C() && t.chosen[i] == e && !t.dropped[i]; c++) {
                    const Index element = i / s.K * C() + c;
                    doutput[element] = t.weights[i] * dout[element];
                    dweights[i] += dout[element] * t.outputs[e][element];
                }
            }
            const Doubles fc = rows_of(at("mlp.experts.c_fc.weight", l), e * s.hidden, s.hidden, C());
            const Doubles proj = rows_of(at("mlp.experts.c_proj.weight", l), e * C(), C(), s.F);
            Doubles dfc(fc.size(), 0.0), dproj(proj.size(), 0.0);
            Doubles dhidden = linear_backward(dproj, nullptr, doutput, t.activated[e], proj, R, C(), s.F);
            activation_backward(dhidden, t.hidden[e], R, s.F);
            add_to(din, linear_backward(dfc, nullptr, dhidden, in, fc, R, s.hidden, C()));
            std::ranges::copy(dfc, d("mlp.experts.c_fc.weight").begin() + static_cast<std::ptrdiff_t>(e * dfc.size()));
            std::ranges::copy(dproj,
                              d("mlp.experts.c_proj.weight").begin() + static_cast<std::ptrdiff_t>(e * dproj.size()));
        }
        const Doubles dlogits = route_backward(t, dweights, B, T);
        add_to(din,
               linear_backward(d("mlp.router.weight"), nullptr, dlogits, in, at("mlp.router.weight", l), R, s.E, C()));
        if (s.shared == 0) return din;
        Doubles dhidden = linear_backward(d("mlp.shared.c_proj.weight"), nullptr, dout, t.shared_activated,
                                          at("mlp.shared.c_proj.weight", l), R, C(), s.shared);
        activation_backward(dhidden, t.shared_hidden, R, s.shared);
        const Index shared_hidden = t.shared_hidden.size() / R;
        add_to(din, linear_backward(d("mlp.shared.c_fc.weight"), nullptr, dhidden, in, at("mlp.shared.c_fc.weight", l),
                                    R, shared_hidden, C()));
        return din;
    }

    ReferenceResult forward(std::span<const int> tokens, std::span<const int> targets, int B, int T,
                            Trace& trace) const {
        const Index R = static_cast<Index>(B) * static_cast<Index>(T);
        Doubles stream(R * C());
        const Doubles* const wpe = bias("wpe.weight");
        for (Index r = 0; r < R; r++) {
            const Index token = static_cast<Index>(tokens[r]), position = r % static_cast<Index>(T);
            for (Index c = 0; c < C(); c++) {
                stream[r * C() + c] = at("wte.weight")[token * C() + c] + (wpe ? (*wpe)[position * C() + c] : 0.0);
            }
        }
        trace.blocks.resize(static_cast<std::size_t>(layers()));
        for (int l = 0; l < layers(); l++) {
            BlockTrace& block = trace.blocks[static_cast<std::size_t>(l)];
            block.input = stream;
            stream = block_forward(block, l, B, T);
        }
        trace.output = stream;
        trace.lnf = norm(stream, "ln_f", -1, R);

        ReferenceResult result;
        result.logits = reference::linear(trace.lnf, classifier(), {}, R, V(), C());
        result.losses.assign(R, 0.0);
        trace.lse.assign(R, 0.0);
        for (Index r = 0; r < R; r++) {
            if (targets[r] < 0) continue;
            const double* row = &result.logits[r * V()];
            double most = row[0], sum = 0;
            for (Index v = 0; v < V(); v++) most = std::fmax(most, row[v]);
            for (Index v = 0; v < V(); v++) sum += std::exp(row[v] - most);
            const double lse = trace.lse[r] = most + std::log(sum);
            result.losses[r] = lse - row[targets[r]] + z_loss * lse * lse;
            result.loss += result.losses[r] / static_cast<double>(R);
        }
        for (const BlockTrace& block : trace.blocks) result.loss += block.experts.loss;
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

        // the gradient of a linear layer's input
        auto through = [&](const std::string& name, const Doubles& dout, const Doubles& in) {
            const ParamInfo& weight = table[table.index(name + ".weight", l)];
            return linear_backward(d(name + ".weight"), dbias(name + ".bias"), dout, in, at(name + ".weight", l), R,
                                   static_cast<Index>(weight.tensor.rows), static_cast<Index>(weight.tensor.cols));
        };
        auto through_norm = [&](const std::string& name, const Doubles& dout, const Doubles& in) {
            return norm_backward(d(name + ".weight"), dbias(name + ".bias"), dout, in, at(name + ".weight", l), R, C(),
                                 table.config().norm_eps);
        };
        // norms of a sublayer: from the gradient of what it adds to that of what it reads
        auto before = [&](const char* name, Doubles dread, const Doubles& in) {
            return norm_after() ? dread : through_norm(name, dread, in);
        };
        auto after = [&](const char* name, const Doubles& dadded, const Doubles& projected) {
            return norm_after() ? through_norm(name, dadded, projected) : dadded;
        };
        const Doubles dadded = after("ln_2", dstream, b.fcproj);
        Doubles dread;
        if (table.config().experts > 0) {
            dread = experts_backward(gradients, dadded, b.experts, b.ln2, l, B, T);
        } else {
            Doubles dfch = through("mlp.c_proj", dadded, b.fch_act);
            activation_backward(dfch, b.fch, R, F());
            dread = through("mlp.c_fc", dfch, b.ln2);
        }
        add_to(dstream, before("ln_2", dread, b.residual2));

        const Doubles datty = through("attn.c_proj", after("ln_1", dstream, b.attproj), b.atty);
        Doubles dqkv = attention_backward(datty, b.qkv, attention_sizes(B, T, l));
        turn(dqkv, B, T, l, true);
        norm_heads_backward(dqkv, gradients, b.raw_qkv, l, R);
        add_to(dstream, before("ln_1", through("attn.c_attn", dqkv, b.ln1), b.input));
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
            const double lse = trace.lse[r];
            for (Index v = 0; v < V(); v++) {
                const double p = std::exp(result.logits[r * V() + v] - lse);
                dlogits[r * V() + v] =
                    (p * (1 + 2 * z_loss * lse) - (v == target ? 1.0 : 0.0)) / static_cast<double>(R);
            }
        }
        Doubles dlnf = reference::linear_backward(gradients[static_cast<std::size_t>(table.classifier())], nullptr,
                                                  dlogits, trace.lnf, classifier(), R, V(), C());
        Doubles dstream = reference::norm_backward(d("ln_f.weight"), dbias("ln_f.bias"), dlnf, trace.output,
                                                   at("ln_f.weight"), R, C(), table.config().norm_eps);
        for (int l = layers() - 1; l >= 0; l--) {
            block_backward(dstream, gradients, trace.blocks[static_cast<std::size_t>(l)], l, B, T);
        }
        for (Index r = 0; r < R; r++) {
            const Index token = static_cast<Index>(tokens[r]), position = r % static_cast<Index>(T);
            for (Index c = 0; c < C(); c++) {
                d("wte.weight")[token * C() + c] += dstream[r * C() + c];
                if (Doubles* const dwpe = dbias("wpe.weight")) (*dwpe)[position * C() + c] += dstream[r * C() + c];
            }
        }
    }
};
