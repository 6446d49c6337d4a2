// Routes tokens in a mixture of experts: chooses each token's experts and their weights, and orders the tokens by
// expert. Shazeer et al., "Outrageously large neural networks", 2017; the balance loss as in Fedus et al., "Switch
// transformers", 2021, for K experts a token and each sequence alone (DeepSeek-AI, "DeepSeek-V3", 2024); the z-loss of
// Zoph et al., "ST-MoE", 2022.
//
//   softmax   p = softmax(logits); the K experts of the largest logits; their weights are p, or p / sum over the K
//   sigmoid   s = sigmoid(logits); the K of the largest s + bias; weights s, or s / sum: the bias only chooses
//   scale     of either router multiplies the weights at the end (the routed scaling factor of DeepSeek-V2 and V3)
//   losses    of a sequence (a E/K) sum_e (n_e / T) (sum_t p_te / T), n_e of its T tokens sent to e (sigmoid: p is s
//             divided by its sum over e); and z mean(lse(logits)^2)
// All arithmetic is fp32. Among equal scores the lower index wins; NaN counts as the least score. A token's experts are
// stored in ascending order. An assignment is a pair (token, k-th of its K experts), with number token * K + k. Experts
// process assignments in order of (expert, token): row `row` belongs to assignment `source[row]`, and an assignment's
// row is `row_of[assignment]`.
//
// Each thread routes one token: E numbers are few beside the experts' work.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/experts/row_sequences.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/vec.cuh"

// Softmax or sigmoid scores; `normalized`: a token's weights add up to one, before `scale` multiplies them.
struct RouterKind {
    bool sigmoid, normalized;
    float scale = 1;
};

// Chooses index (rows, K) and weight (rows, K) from logits (rows, E) and `bias` (E) or null. With `again` the indices
// are inputs, and only weights are computed. With `in_turn` experts are chosen whatever the logits: the first row takes
// the first K, the next row the following ones, and after the last expert comes the first.
struct RouterForward {
    std::int32_t* index;
    float* weight;
    const float *logits, *bias;
    int rows, E, K;
    RouterKind kind;
    bool again, in_turn = false;
};
inline void router_forward(const RouterForward& args, cudaStream_t stream);

// Adds to counts (sequences, E) the number of assignments to each expert. Exact in any order.
inline void count_experts(std::int32_t* counts, const std::int32_t* index, int rows, int E, int K,
                          const RowSequences& sequences, cudaStream_t stream);

// Orders assignments by expert: writes offsets (E + 1), source (rows K) and row_of (rows K).
inline void order_by_expert(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of,
                            const std::int32_t* index, int rows, int E, int K, cudaStream_t stream);

// Computes dlogits (rows, E), which may be `logits`, from the gradient of the weights (rows, K). `balance`: a (E / K) /
// T^2 times the weight of a sequence in the loss, with counts that all ranks have added up; `z`: 2 z times the weight
// of a token. `losses` (2, rows) or null: what each row adds to the balance loss and to the z-loss.
struct RouterBackward {
    float* dlogits;
    const float *logits, *dweight;
    const std::int32_t *index, *counts;   // counts null: no balance loss
    int rows, E, K;
    RouterKind kind;
    RowSequences sequences;
    float balance, z;
    float* losses = nullptr;
};
inline void router_backward(const RouterBackward& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kRouterThreads = 128;

// Probabilities of a row: softmax(logits), or in a sigmoid router the scores divided by their sum.
struct RouterRow {
    const float* logits;
    int E;
    RouterKind kind;
    float most, sum;   // largest logit; sum of exp(logit - most), or of sigmoids

    __device__ __forceinline__ RouterRow(const float* row, int experts, RouterKind of)
        : logits(row), E(experts), kind(of) {
        most = logits[0], sum = 0;
        for (int e = 1; e < E; e++) most = larger(most, logits[e]);
        for (int e = 0; e < E; e++) sum += kind.sigmoid ? sigmoid(e) : exp_for<float>(logits[e] - most);
    }
    __device__ __forceinline__ float sigmoid(int e) const { return sigmoid_for<float>(logits[e]); }
    __device__ __forceinline__ float probability(int e) const {
        return (kind.sigmoid ? sigmoid(e) : exp_for<float>(logits[e] - most)) / sum;
    }
    // Returns the score that weights are computed from.
    __device__ __forceinline__ float score(int e) const { return kind.sigmoid ? sigmoid(e) : probability(e); }
    __device__ __forceinline__ float log_sum_exp() const {
        float exps = kind.sigmoid ? 0.0f : sum;
        for (int e = 0; e < E && kind.sigmoid; e++) exps += exp_for<float>(logits[e] - most);
        return most + logf(exps);
    }
};

// Returns the index of the best score that comes after (value, expert) in the order of choice.
template <class Score>
__device__ __forceinline__ int next_best(int E, float& value, int expert, Score score) {
    int best = -1;
    float best_value = 0;
    for (int e = 0; e < E; e++) {
        float s = score(e);
        if (!(s == s)) s = -INFINITY;
        const bool behind = expert < 0 || s < value || (s == value && e > expert);
        if (behind && (best < 0 || s > best_value)) best = e, best_value = s;
    }
    value = best_value;
    return best;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) router_forward_kernel(RouterForward args) {
    const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (row >= args.rows) return;
    const RouterRow router(args.logits + static_cast<std::int64_t>(row) * args.E, args.E, args.kind);
    std::int32_t* const index = args.index + static_cast<std::int64_t>(row) * args.K;
    float* const weight = args.weight + static_cast<std::int64_t>(row) * args.K;
    float value = 0;
    for (int k = 0, chosen = -1; k < args.K && !args.again; k++) {
        if (args.in_turn) {
            chosen = static_cast<int>((static_cast<std::int64_t>(row) * args.K + k) % args.E);
        } else {
            chosen = next_best(args.E, value, chosen, [&](int e) {
                if (args.kind.sigmoid) return router.sigmoid(e) + (args.bias ? args.bias[e] : 0.0f);
                return router.logits[e];
            });
        }
        int place = k;
        for (; place > 0 && index[place - 1] > chosen; place--) index[place] = index[place - 1];
        index[place] = chosen;
    }
    float sum = 0;
    for (int k = 0; k < args.K; k++) sum += weight[k] = router.score(index[k]);
    for (int k = 0; k < args.K; k++) weight[k] = args.kind.scale * (args.kind.normalized ? weight[k] / sum : weight[k]);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) count_experts_kernel(std::int32_t* counts, const std::int32_t* index,
                                                                 int rows, int E, int K, RowSequences sequences) {
    const int assignment = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (assignment >= rows * K) return;
    atomicAdd(counts + static_cast<std::int64_t>(sequences.of(assignment / K)) * E + index[assignment], 1);
}

// Each block handles one expert, each thread some adjacent assignments.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    order_by_expert_kernel(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of, const std::int32_t* index,
                           int assignments, int E) {
    __shared__ int before[kThreads], own[kThreads];   // assignments to lower experts, and to this one
    const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x), share = ceil_div(assignments, threads);
    const int first = min(thread * share, assignments), end = min(first + share, assignments);
    int lower = 0, equal = 0;
    for (int i = first; i < end; i++) {
        lower += index[i] < expert;
        equal += index[i] == expert;
    }
    before[thread] = lower, own[thread] = equal;
    __syncthreads();
    int row = 0;
    for (int t = 0; t < threads; t++) row += before[t];
    if (thread == 0) offsets[expert] = row;
    for (int t = 0; t < thread; t++) row += own[t];
    for (int i = first; i < end; i++) {
        if (index[i] != expert) continue;
        row_of[i] = row;
        source[row++] = i;
    }
    if (expert == E - 1 && thread == threads - 1) offsets[E] = assignments;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) router_backward_kernel(RouterBackward args) {
    const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (row >= args.rows) return;
    const int E = args.E, K = args.K;
    const RouterRow router(args.logits + static_cast<std::int64_t>(row) * E, E, args.kind);
    const std::int32_t* const index = args.index + static_cast<std::int64_t>(row) * K;
    const float* const dweight = args.dweight + static_cast<std::int64_t>(row) * K;
    const std::int32_t* const counts =
        args.counts ? args.counts + static_cast<std::int64_t>(args.sequences.of(row)) * E : nullptr;
    auto dunscaled = [&](int k) { return args.kind.scale * dweight[k]; };
    float of_chosen = 0, mean = 0;   // sum of the chosen scores; mean of the gradients of weights, by weight
    for (int k = 0; k < K; k++) {
        of_chosen += router.score(index[k]);
        mean += router.score(index[k]) * dunscaled(k);
    }
    mean /= of_chosen;
    auto dbalance = [&](int e) { return counts ? args.balance * static_cast<float>(counts[e]) : 0.0f; };
    // Returns the gradient of expert e's score through the weights. Must be called in ascending order of e.
    int next = 0;
    auto dscore = [&](int e) {
        if (next == K || index[next] != e) return 0.0f;
        const float d = dunscaled(next++);
        return args.kind.normalized ? (d - mean) / of_chosen : d;
    };
    float balance_mean = 0, score_mean = 0;
    for (int e = 0; e < E; e++) {
        const float p = router.probability(e);
        balance_mean += p * dbalance(e);
        score_mean += p * dscore(e);
    }
    next = 0;
    const float lse = args.z == 0 ? 0.0f : router.log_sum_exp(), z = args.z * lse;
    if (args.losses) args.losses[row] = balance_mean, args.losses[args.rows + row] = 0.5f * z * lse;
    float exps = 0;   // denominator of softmax, for a sigmoid router's z-loss
    for (int e = 0; e < E && args.kind.sigmoid && z != 0; e++) exps += exp_for<float>(router.logits[e] - router.most);
    float* const out = args.dlogits + static_cast<std::int64_t>(row) * E;
    for (int e = 0; e < E; e++) {
        const float logit = router.logits[e], p = router.probability(e), balance = dbalance(e) - balance_mean;
        if (args.kind.sigmoid) {
            const float s = router.sigmoid(e), softmax = z == 0 ? 0.0f : exp_for<float>(logit - router.most) / exps;
            out[e] = (dscore(e) + balance / router.sum) * s * (1.0f - s) + z * softmax;
        } else {
            out[e] = p * (dscore(e) - score_mean + balance + z);
        }
    }
}

inline Launch router_launch(std::int64_t count, cudaStream_t stream, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
    return {dim3(blocks_for(count, kRouterThreads)), dim3(kRouterThreads), 0, stream, file, line};
}
inline std::size_t bytes_of(int a, int b) {
    return std::size_t{4} * static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

inline void router_forward(const RouterForward& args, cudaStream_t stream) {
    ENSURE(args.K >= 1 && args.K <= args.E, args.K, " of ", args.E, " experts");
    if (args.rows == 0) return;
    Launch where = router_launch(args.rows, stream);
    where.reads(args.logits, bytes_of(args.rows, args.E)).reads(args.bias, bytes_of(args.E, 1));
    where.writes(args.weight, bytes_of(args.rows, args.K));
    args.again ? where.reads(args.index, bytes_of(args.rows, args.K))
               : where.writes(args.index, bytes_of(args.rows, args.K));
    launch(router_forward_kernel<kRouterThreads>, where, args);
}

inline void count_experts(std::int32_t* counts, const std::int32_t* index, int rows, int E, int K,
                          const RowSequences& sequences, cudaStream_t stream) {
    if (rows == 0) return;
    const int last = sequences.of(rows - 1);
    Launch where = router_launch(std::int64_t{rows} * K, stream);
    where.reads(index, bytes_of(rows, K)).reads(counts, bytes_of(last + 1, E)).writes(counts, bytes_of(last + 1, E));
    launch(count_experts_kernel<kRouterThreads>, where, counts, index, rows, E, K, sequences);
}

inline void order_by_expert(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of,
                            const std::int32_t* index, int rows, int E, int K, cudaStream_t stream) {
    constexpr int threads = 256;
    Launch where{dim3(static_cast<unsigned>(E)), dim3(loop_threads(threads)), 0, stream};
    where.reads(index, bytes_of(rows, K)).writes(offsets, bytes_of(E + 1, 1));
    where.writes(source, bytes_of(rows, K)).writes(row_of, bytes_of(rows, K));
    launch(order_by_expert_kernel<threads>, where, offsets, source, row_of, index, rows * K, E);
}

inline void router_backward(const RouterBackward& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    Launch where = router_launch(args.rows, stream);
    where.reads(args.logits, bytes_of(args.rows, args.E)).reads(args.dweight, bytes_of(args.rows, args.K));
    where.reads(args.index, bytes_of(args.rows, args.K)).writes(args.dlogits, bytes_of(args.rows, args.E));
    if (args.counts) where.reads(args.counts, bytes_of(args.sequences.of(args.rows - 1) + 1, args.E));
    if (args.losses) where.writes(args.losses, bytes_of(2, args.rows));
    launch(router_backward_kernel<kRouterThreads>, where, args);
}
