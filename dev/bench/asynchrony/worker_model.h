// A model that trains in one process as workers of asynchronous training would: its exact weights are taken and put.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "llmc/kernels/optim/master_halves.cuh"
#include "llmc/run/step/step.h"

// Samples of training, and of a validation that is the same every time.
struct Samples {
    std::function<void(std::uint64_t number, const MicroBatch&to)> training, validation;
    int validation_batches = 1;
};

class WorkerModel {
public:
    // `B` sequences a step. Equal `seed`s give equal weights.
    WorkerModel(const ModelConfig& config, int B, const OptimizerOptions& optimizer, const Samples& samples,
                std::uint64_t seed, Arena& arena, cudaStream_t stream)
        : samples_(samples),
          stage_(config, shape_of(config, B), arena, stream),
          step_((initialize_parameters(stage_.parameters(), seed, stream), stage_), optimizer, arena) {}

    // Computes the gradients of a sample, and applies the latest ones in update `number`, counted from 1.
    void gradients(std::uint64_t sample) {
        step_.gradients(
            one_stage_schedule(1), [&](int, const MicroBatch& to) { samples_.training(sample, to); },
            1.0f / static_cast<float>(stage_.tokens()));
    }
    void update(int number, float learning_rate) {
        step_.update(number, learning_rate);
        step_.result();
    }

    // Returns the exact weights, or puts others in their place.
    std::vector<float> weights() {
        std::vector<float> all;
        for (const TensorLayout& tensor : storage().tensors()) {
            with_weights(tensor, [&](const auto& buffer, std::size_t from, std::size_t count) {
                for (auto value : buffer.download(stage_.stream(), from, count)) {
                    all.push_back(static_cast<float>(value));
                }
            });
        }
        return all;
    }
    void set_weights(const std::vector<float>& all) {
        auto next = all.begin();
        for (const TensorLayout& tensor : storage().tensors()) {
            const std::vector<float> part(next, next + static_cast<std::ptrdiff_t>(tensor.elements));
            next += static_cast<std::ptrdiff_t>(part.size());
            auto put = [&]<class T>(const DeviceBuffer<T>& buffer, std::size_t from) {
                std::vector<T> rounded(part.size());
                std::ranges::transform(part, rounded.begin(), parameter_of<T>);
                buffer.upload(rounded, stage_.stream(), from);
                wait_for(stage_.stream());
            };
            with_weights(tensor, [&](const auto& buffer, std::size_t from, std::size_t) { put(buffer, from); });
            const auto parameters = stage_.parameters().unit(tensor.slot);
            put(parameters, static_cast<std::size_t>(stage_.parameters().owned(tensor.param) - parameters.data()));
        }
    }

    // Returns the mean loss of the validation's samples.
    double validation_loss() {
        double sum = 0;
        std::size_t count = 0;
        for (int batch = 0; batch < samples_.validation_batches; batch++) {
            step_.forward(
                [&](int, const MicroBatch& to) { samples_.validation(static_cast<std::uint64_t>(batch), to); },
                Purpose::loss);
            std::vector<float> losses(static_cast<std::size_t>(stage_.tokens()));
            CUDA_CHECK(cudaMemcpyAsync(losses.data(), stage_.losses(), losses.size() * sizeof(float),
                                       cudaMemcpyDeviceToHost, stage_.stream()));
            wait_for(stage_.stream());
            for (const float loss : losses) sum += loss, count++;
        }
        return sum / static_cast<double>(count);
    }

private:
    static StageOptions shape_of(const ModelConfig& config, int B) {
        StageOptions shape;
        shape.B = B, shape.T = static_cast<int>(config.max_seq_len);
        return shape;
    }
    const ParamStorage& storage() const { return stage_.storage(); }
    // Calls use(buffer, first element, elements) for where the exact weights of a tensor are.
    template <class Use>
    void with_weights(const TensorLayout& tensor, const Use& use) {
        auto call = [&](const auto& state) {
            const auto buffer = state.unit(tensor.slot);
            use(buffer, static_cast<std::size_t>(state.owned(tensor.param) - buffer.data()),
                static_cast<std::size_t>(tensor.elements));
        };
        const std::vector<OptimizerState>& states = step_.optimizer().states();
        const auto masters = std::ranges::find_if(states, &OptimizerState::is_weights);
        if (masters != states.end()) {
            call(masters->values.as<float>());
        } else {
            call(stage_.parameters());
        }
    }

    const Samples& samples_;
    Stage stage_;
    Step step_;
};
