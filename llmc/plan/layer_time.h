// Parts of a layer's time, for the closed forms of a plan (closed_form.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>

// Seconds of one layer and micro-batch on one rank.
struct LayerTime {
    double forward = 0, input = 0, weight = 0, recompute = 0, flops = 0;
    double tensor_bytes = 0, tensor_seconds = 0;      // bytes sent and seconds by tensor parallelism
    double tensor_forward = 0, tensor_backward = 0;   // exposed seconds, and the slowdown of work beside it
    double tensor_weight = 0;                         // exposed seconds where gradients of weights wait
    double tensor_turn = 0;                           // more in backward if no layer comes before
    double tensor_between = 0;                        // work between the exchanges of backward, if there are two
    double context_bytes = 0, context_seconds = 0;    // sent by context parallelism
    double context_forward = 0, context_backward = 0;
    // seconds of work between a layer's gradients and the next exchange of tensor, context or expert parallelism
    double tensor_slack = 0, context_slack = 0, expert_slack = 0;
    // and between a layer's begin and its first exchange
    double context_before = 0, expert_before = 0;
    double expert_bytes = 0, expert_seconds = 0;      // bytes sent and seconds by expert parallelism
    double expert_forward = 0, expert_backward = 0;   // exposed seconds, and the slowdown of work beside it
    double expert_weight = 0;                         // exposed where gradients of weights wait
    double compute() const { return forward + input + weight + recompute; }
    double tensor_exposed() const { return tensor_forward + tensor_backward + tensor_weight; }
    double context_exposed() const { return context_forward + context_backward; }
    double expert_exposed() const { return expert_forward + expert_backward + expert_weight; }
    double forward_seconds() const { return forward + tensor_forward + context_forward + expert_forward; }
    double input_seconds() const { return input + recompute + tensor_backward + context_backward + expert_backward; }
    double weight_seconds() const { return weight + tensor_weight + expert_weight; }
};

// Returns the mean of layers of which `share` are as `b` and the others as `a`, in every field.
inline LayerTime mean_layer(const LayerTime& a, const LayerTime& b, double share) {
    using Fields = std::array<double, sizeof(LayerTime) / sizeof(double)>;   // it has no others
    Fields mean = std::bit_cast<Fields>(a);
    const Fields other = std::bit_cast<Fields>(b);
    for (std::size_t i = 0; i < mean.size(); i++) mean[i] += share * (other[i] - mean[i]);
    return std::bit_cast<LayerTime>(mean);
}

// Forward seconds of a branch of a layer: of its input matmuls and its output matmul, all rows, and of attention.
struct BranchTime {
    double in = 0, out = 0, core = 0;
};

// Elements of a rank's queries, and of its keys, in context parallelism; Ulysses copies heads that are too few.
struct ContextElements {
    double q, kv;
};

// Seconds of a layer's experts, or of the shared ones: of each product with their two matrices, and between these.
struct ExpertTime {
    double in = 0, out = 0, activation = 0, activation_backward = 0;
};

// A matrix of a layer, and the rows of a micro-batch that are multiplied with it; all experts' matrices count as one.
struct LayerMatrix {
    double rows, outputs, inputs;
    double elements;                                               // as many as the matrix has
    double flops() const { return 2 * rows * outputs * inputs; }   // for each of its three matmuls
};

// Rows that travel to experts of other ranks chunk by chunk, one exchange after another, while these and what comes
// before them are worked on; with `back` each chunk's rows return once its work is done.
struct ChunkedExchange {
    int chunks;
    double one;      // seconds of a chunk's exchange
    double before;   // seconds of work that waits for no rows
    double work;     // seconds of a chunk, between its exchanges
    double after;    // seconds of a chunk, beside its way back
    bool back;

    double exchanges() const { return (back ? 2 : 1) * chunks * one; }
    // Returns how much longer all work takes because of the exchanges.
    double exposed() const {
        double computed = before, sent = chunks * one;
        for (int chunk = 0; chunk < chunks; chunk++) {
            computed = std::max(computed, (chunk + 1) * one) + work;
            if (back) sent = std::max(sent, computed) + one;
            computed += after;
        }
        return (back ? std::max(sent, computed) : computed) - before - chunks * (work + after);
    }
    double hidden() const { return std::max(0.0, exchanges() - exposed()); }
};
