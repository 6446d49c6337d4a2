// Updates one element by an optimizer's rule. g: the clipped gradient; t: the number of updates; decay: the tensor's
// weight decay.
//
//   AdamW  Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2
//          m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
//          change = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//          w = w - lr (change + decay w)
//   SGD    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013, equation 1
//          m = beta1 m + g                      w = w - lr (m + decay w)
//   LARS   You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1
//          m = beta1 m + lr ratio (g + decay w), ratio = trust |w| / (|g| + decay |w|)          w = w - m
//   LAMB   You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020, algorithm 2
//          AdamW's change + decay w, times ratio = |w| / |change + decay w|
//   Muon   Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
//          m = beta1 m + g                      U = g + beta1 m (Nesterov's)
//          X = U / (norm_scale |U| + norm_epsilon), made nearly orthogonal (newton_schulz.h)
//          w = w - lr (scale X + decay w)
//
// The outer step of local steps (Douillard et al., "DiLoCo", 2023, algorithm 1, with Nesterov's momentum): w is the sum
// of the replicas' weights, scale 1 / their number, v the weights that they started from
//          d = v - scale w                      m = beta1 m + d
//          w = v - lr (d + beta1 m)             v = w
// Streaming (Douillard et al., "Streaming DiLoCo", 2025, algorithm 2): x is the mean of the weights that the replicas
// had when they sent them, blend the share of its own that a replica keeps
//          d = v - x                            m = beta1 m + d
//          v = v - lr (d + beta1 m)             w = v + blend (w - v)
//
// The average of the weights (EMA): m = m + (1 - average_decay) (w - m).
//
// |x| is the norm of a whole tensor, or of a block of its rows (q, k, v). A ratio is 1 where one of its norms is 0, and
// for tensors that do not decay (biases, norms), as in the code of LAMB's authors.
//
// Uses fmaf where two products are added: otherwise the compiler chooses which of them to fuse, and runs must agree.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

struct GradNorm;   // llmc/kernels/global_norm.cuh

// Sums of squares over a tensor, or a block of its rows: of the weights, and of the changes that the rule's ratio
// divides by.
struct TensorNorms {
    double weights, changes;
};

// Factors that are the same for all elements of a step.
struct UpdateFactors {
    float learning_rate, beta1, beta2, epsilon;
    float correction1, correction2;   // 1 / (1 - beta^t)
    float trust;
    float norm_scale, norm_epsilon;   // Muon
    float blend;                      // streaming
    float average_decay;
    int step;
    std::uint64_t seed;
    const GradNorm* norm;
    const TensorNorms* norms;
};

// Values that a rule reads and writes for an element. A direction is neither a weight nor a gradient: it is read in
// place of the gradient without being clipped, and written in place of the weight, rounded to nearest. Of a rule with
// has_moments m and v may be bf16.
enum : unsigned { reads_w = 1, reads_m = 2, reads_v = 4, reads_g = 8, is_direction = 16, has_moments = 32 };

__device__ __forceinline__ void adam_moments(float& m, float& v, float g, const UpdateFactors& f) {
    m = fmaf(f.beta1, m, (1.0f - f.beta1) * g);
    v = fmaf(f.beta2, v, (1.0f - f.beta2) * (g * g));
}
__device__ __forceinline__ float adam_change(float w, float m, float v, float decay, const UpdateFactors& f) {
    return fmaf(decay, w, (m * f.correction1) / (sqrtf(v * f.correction2) + f.epsilon));
}

struct AdamW {
    static constexpr unsigned reads = has_moments | reads_w | reads_m | reads_v | reads_g,
                              writes = reads_w | reads_m | reads_v;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float& v, float g, float decay, float, const UpdateFactors& f) {
        adam_moments(m, v, g, f);
        w = fmaf(-f.learning_rate, adam_change(w, m, v, decay, f), w);
    }
};

struct Sgd {
    static constexpr unsigned reads = has_moments | reads_w | reads_m | reads_g, writes = reads_w | reads_m;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float&, float g, float decay, float, const UpdateFactors& f) {
        m = fmaf(f.beta1, m, g);
        w = fmaf(-f.learning_rate, fmaf(decay, w, m), w);
    }
};

struct Lars {
    static constexpr unsigned reads = has_moments | reads_w | reads_m | reads_g, writes = reads_w | reads_m;
    static constexpr bool has_ratio = true;
    __device__ static float change(float, float, float, float g, float, const UpdateFactors&) { return g; }
    __device__ static float ratio(const TensorNorms& norms, float decay, const UpdateFactors& f) {
        const double w = sqrt(norms.weights), g = sqrt(norms.changes);
        return w > 0 && g > 0 ? static_cast<float>(f.trust * w / (g + decay * w)) : 1.0f;
    }
    __device__ static void update(float& w, float& m, float&, float g, float decay, float ratio,
                                  const UpdateFactors& f) {
        m = fmaf(f.beta1, m, f.learning_rate * ratio * fmaf(decay, w, g));
        w -= m;
    }
};

struct LambMoments {   // LAMB's first half: its ratio is known after it
    static constexpr unsigned reads = has_moments | reads_m | reads_v | reads_g, writes = reads_m | reads_v;
    static constexpr bool has_ratio = false;
    __device__ static void update(float&, float& m, float& v, float g, float, float, const UpdateFactors& f) {
        adam_moments(m, v, g, f);
    }
};

struct Lamb {
    static constexpr unsigned reads = has_moments | reads_w | reads_m | reads_v, writes = reads_w;
    static constexpr bool has_ratio = true;
    __device__ static float change(float w, float m, float v, float, float decay, const UpdateFactors& f) {
        return adam_change(w, m, v, decay, f);
    }
    __device__ static float ratio(const TensorNorms& norms, float, const UpdateFactors&) {
        const double w = sqrt(norms.weights), change = sqrt(norms.changes);
        return w > 0 && change > 0 ? static_cast<float>(w / change) : 1.0f;
    }
    __device__ static void update(float& w, float& m, float& v, float, float decay, float ratio,
                                  const UpdateFactors& f) {
        w = fmaf(-f.learning_rate * ratio, adam_change(w, m, v, decay, f), w);
    }
};

struct OuterNesterov {
    static constexpr unsigned reads = reads_w | reads_m | reads_v, writes = reads_w | reads_m | reads_v;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float& v, float, float, float scale, const UpdateFactors& f) {
        const float d = fmaf(-scale, w, v);
        m = fmaf(f.beta1, m, d);
        w = fmaf(-f.learning_rate, fmaf(f.beta1, m, d), v);
        v = w;
    }
};

struct OuterDeparture {   // m: what is sent
    static constexpr unsigned reads = reads_w, writes = reads_m;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float&, float, float, float scale, const UpdateFactors&) {
        m = scale * w;
    }
};

struct OuterArrival {
    static constexpr unsigned reads = reads_w | reads_m | reads_v | is_direction, writes = reads_w | reads_m | reads_v;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float& v, float x, float, float, const UpdateFactors& f) {
        const float d = v - x;
        m = fmaf(f.beta1, m, d);
        v = fmaf(-f.learning_rate, fmaf(f.beta1, m, d), v);
        w = fmaf(f.blend, w - v, v);
    }
};

struct Average {   // m: the average
    static constexpr unsigned reads = reads_w | reads_m, writes = reads_m;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float& m, float&, float, float, float, const UpdateFactors& f) {
        m = fmaf(1.0f - f.average_decay, w - m, m);
    }
};

struct MuonMomentum {
    static constexpr unsigned reads = has_moments | reads_m | reads_g, writes = reads_m;
    static constexpr bool has_ratio = false;
    __device__ static void update(float&, float& m, float&, float g, float, float, const UpdateFactors& f) {
        m = fmaf(f.beta1, m, g);
    }
};

struct MuonDirection {
    static constexpr unsigned reads = has_moments | reads_m | reads_g, writes = is_direction;
    static constexpr bool has_ratio = true;
    __device__ static float change(float, float m, float, float g, float, const UpdateFactors& f) {
        return fmaf(f.beta1, m, g);
    }
    __device__ static float ratio(const TensorNorms& norms, float, const UpdateFactors& f) {
        return static_cast<float>(1 / (f.norm_scale * sqrt(norms.changes) + f.norm_epsilon));
    }
    __device__ static void update(float& w, float& m, float& v, float g, float decay, float ratio,
                                  const UpdateFactors& f) {
        w = ratio * change(w, m, v, g, decay, f);
    }
};

struct MuonApply {
    static constexpr unsigned reads = reads_w | is_direction, writes = reads_w;
    static constexpr bool has_ratio = false;
    __device__ static void update(float& w, float&, float&, float x, float decay, float scale, const UpdateFactors& f) {
        w = fmaf(-f.learning_rate, fmaf(decay, w, scale * x), w);
    }
};
