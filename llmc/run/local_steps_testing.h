// For tests of local steps: one rank's model and optimizer, its steps, and its exact weights, read and written.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/model/download_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/step.h"

namespace local_steps_testing {

constexpr int B = 2, T = 16, vocab = 61;
using Floats = std::vector<float>;

inline ModelConfig model() { return custom_model_config(2, 2, 32, T, vocab); }

inline OptimizerOptions local_steps(int every, float lr = 0.7f, float momentum = 0.9f) {
    OptimizerOptions how;
    how.grad_clip = 0.5f;   // these models' norms are above it
    how.eps = 1e-3f;        // so large that a gradient's rounding moves no weight by a whole learning rate
    how.local = {every, lr, momentum};
    return how;
}

// One rank's model and optimizer; alone without a world.
struct Trainee {
    OptimizerOptions how;
    TrainingGroups groups;
    cudaStream_t stream;
    Stage stage;
    Step step;

    Trainee(const OptimizerOptions& its_how, Arena& arena, cudaStream_t its_stream, World* world = nullptr,
            int zero = 0)
        : how(its_how),
          groups(world ? training_groups(*world, model(), 1, how.local.every > 0) : TrainingGroups{}),
          stream(its_stream),
          stage(model(), options(world, zero, how.local.every > 0), arena, stream),
          step((initialize_parameters(stage.parameters(), 1, stream), stage), how, arena, groups) {}

    // Makes the gradients of a step, of this rank's samples or those of rank `samples_of`. `huge`: so large that no
    // float holds their norm, though the loss is finite.
    void gradients(int number, bool huge = false, int samples_of = -1) {
        const int rank = samples_of >= 0 ? samples_of : stage.data_rank();
        auto read = [&](int, const MicroBatch& to) {
            for (std::size_t i = 0; i < to.tokens.size(); i++) {
                to.tokens[i] = 1, to.targets[i] = 2;   // whose gradients add up
                if (huge) continue;
                const std::uint64_t key = mix64(static_cast<std::uint64_t>(number) * 1000003 + i +
                                                static_cast<std::uint64_t>(rank) * to.tokens.size());
                to.tokens[i] = static_cast<std::int32_t>(key % vocab);
                to.targets[i] = static_cast<std::int32_t>((key >> 32) % vocab);
            }
        };
        const float mean = 1.0f / static_cast<float>(stage.tokens() * stage.data_ranks());
        step.gradients(one_stage_schedule(1), read, huge ? 1e36f : mean);
    }
    StepResult train(int number) {
        gradients(number);
        step.update(number, how.lr);
        return step.result();
    }

    // The exact weights: masters if there are some.
    const OptimizerState* masters() {
        const std::vector<OptimizerState>& states = step.optimizer().states();
        const auto found = std::ranges::find_if(states, &OptimizerState::is_weights);
        return found == states.end() ? nullptr : &*found;
    }
    // A state's values that this rank owns, one tensor after the other; "" are the exact weights.
    Floats values(const std::string& state = "") {
        step.wait_for_all_gather();
        Floats all;
        auto add = [&](const auto& values) {
            for (const TensorLayout& place : values.storage().tensors()) {
                const auto count =
                    static_cast<std::size_t>(stage.storage().padded_elements(place, StateKind::optimizer));
                const auto buffer = values.unit(place.slot);
                const auto from = static_cast<std::size_t>(values.owned(place.param) - buffer.data());
                for (auto value : buffer.download(stream, from, count)) all.push_back(static_cast<float>(value));
            }
        };
        if (!state.empty()) {
            add(step.optimizer().state(state));
        } else if (masters() != nullptr) {
            add(masters()->values);
        } else {
            add(stage.parameters());
        }
        return all;
    }
    // Puts values in the place of the exact weights, for a rank that owns all.
    void set_weights(const Floats& all) {
        std::size_t at = 0;
        for (const TensorLayout& place : stage.storage().tensors()) {
            const auto count = static_cast<std::size_t>(stage.storage().padded_elements(place, StateKind::optimizer));
            const Floats part(all.begin() + static_cast<std::ptrdiff_t>(at),
                              all.begin() + static_cast<std::ptrdiff_t>(at + count));
            at += count;
            auto put = [&]<class X>(const ModelState<X>& state) {
                const std::vector<X> rounded(part.begin(), part.end());
                state.unit(place.slot)
                    .upload(rounded, stream,
                            static_cast<std::size_t>(state.owned(place.param) - state.unit(place.slot).data()));
                wait_for(stream);
            };
            put(stage.parameters());
            if (masters() != nullptr) put(masters()->values);
        }
    }

private:
    static StageOptions options(World* world, int zero, bool local) {
        StageOptions result;
        result.B = B, result.T = T;
        if (world == nullptr) return result;
        result.place = {world->mesh(), world->at(), zero};
        if (local) {
            const Replica own = replica_of(world->mesh(), world->at());
            result.place.mesh = own.mesh, result.place.at = own.at;
            result.replica = own.number, result.replicas = own.replicas;
        }
        if (group_size(result.place.mesh, zero_axes) == 1) result.place.zero_stage = 0;
        return result;
    }
};

inline double distance(const Floats& a, const Floats& b) {
    ENSURE(a.size() == b.size(), a.size(), " and ", b.size(), " values");
    double most = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    return most;
}
inline bool all_zero(const Floats& values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
}
inline std::string bits(const Floats& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
// Whether all ranks have the same bits. Collective.
inline bool all_have(TestRank& me, const Floats& values) {
    const std::vector<std::string> of_all = me.world.gather_text(bits(values));
    return std::ranges::all_of(of_all, [&](const std::string& other) { return other == of_all[0]; });
}

inline MeshShape replicas_of(int replicas, int ranks) { return {1, replicas * ranks, 1, 1, replicas == 1 ? 0 : ranks}; }

}   // namespace local_steps_testing
