// Biases that a sigmoid router adds to scores when it chooses experts, but not when it weighs them (Wang et al.,
// "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024; DeepSeek-V3). After each step the biases
// of experts with fewer tokens than the mean of their layer rise by a fixed amount, and those of others fall. They are
// no parameters: they have no gradient, no decay and no moments.
//
// They are (L, E) in fp32 whatever the build, for all layers of the model, with the same bits on every rank: they
// follow from counts of all ranks. A model without such a router has none.
#pragma once

#include <span>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/model/config.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh

class RouterBias {
public:
    // Begins with all biases zero.
    RouterBias(const ModelConfig& config, Arena& arena, cudaStream_t stream);

    static std::size_t size(const ModelConfig& config) {
        return config.router == RouterScore::sigmoid ? static_cast<std::size_t>(config.layers * config.experts) : 0;
    }
    const float* data() const { return values_.data(); }   // null if there are none
    std::vector<float> values() const;                     // waits for the device
    void set(std::span<const float> values);

    // Moves the biases by `counts` (L, E): tokens of a step that each expert got, of all ranks. Does nothing if `norm`
    // says that the step's update is skipped.
    void update(const std::int32_t* counts, const GradNorm* norm) const;

private:
    int experts_;
    cudaStream_t stream_;
    DeviceBuffer<float> values_;
};
