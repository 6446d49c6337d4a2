#include "llmc/model/layer/router_bias.h"

#include "llmc/kernels/experts/router_bias.cuh"

RouterBias::RouterBias(const ModelConfig& config, Arena& arena, cudaStream_t stream)
    : experts_(static_cast<int>(config.experts)), stream_(stream) {
    if (size(config) == 0) return;
    values_ = arena.allocate<float>("experts/router bias", size(config));
    values_.zero(stream);
}

void RouterBias::set(std::span<const float> values) {
    ENSURE(values.size() == values_.size(), values.size(), " biases of routers, expected ", values_.size());
    if (!values.empty()) values_.upload(values, stream_);
}

std::vector<float> RouterBias::values() const {
    if (values_.size() == 0) return {};
    return values_.download(stream_);
}

void RouterBias::update(const std::int32_t* counts, const GradNorm* norm) const {
    if (values_.size() == 0) return;
    update_router_bias(values_.data(), counts, norm, static_cast<int>(values_.size()) / experts_, experts_, stream_);
}
