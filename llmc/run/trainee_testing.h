// For tests of steps: one rank's model and optimizer, its steps, its exact weights, read and written, and its
// checkpoints.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/kernels/optim/master_halves.cuh"
#include "llmc/model/download_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/step/step.h"

namespace trainee_testing {

constexpr int B = 2, T = 16, vocab = 61;
using Floats = std::vector<float>;

inline ModelConfig model() { return custom_model_config(2, 2, 32, T, vocab); }

inline OptimizerOptions options() {
    OptimizerOptions how;
    how.grad_clip = 0.5f;   // these models' norms are above it
    how.eps = 1e-3f;        // so large that a gradient's rounding moves no weight by a whole learning rate
    return how;
}

inline OptimizerOptions options(const LocalSteps& local) {
    OptimizerOptions how = options();
    how.local = local;
    return how;
}
// Returns the mesh of so many replicas of local steps, of `ranks` data-parallel ranks each.
inline MeshShape replicas_of(int replicas, int ranks) { return {1, replicas * ranks, 1, 1, replicas == 1 ? 0 : ranks}; }

// Samples of a step's gradients: of rank `rank` of the data (-1: this one) and the `ranks` - 1 after it, in as many
// micro-batches. `huge`: gradients so large that no float holds their norm, though the loss is finite.
struct Samples {
    int rank = -1, ranks = 1;
    bool huge = false;
};

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
          stage(model(), stage_options(world, zero, how.local.every > 0), arena, stream),
          step((initialize_parameters(stage.parameters(), 1, stream), stage), how, arena, groups) {}

    void gradients(int number, const Samples& of = {}) {
        const int first = of.rank >= 0 ? of.rank : stage.data_rank();
        auto read = [&](int micro_batch, const MicroBatch& to) {
            const auto rank = static_cast<std::uint64_t>(first + micro_batch);
            for (std::size_t i = 0; i < to.tokens.size(); i++) {
                to.tokens[i] = 1, to.targets[i] = 2;   // whose gradients add up
                if (of.huge) continue;
                const std::uint64_t key =
                    mix64(static_cast<std::uint64_t>(number) * 1000003 + i + rank * to.tokens.size());
                to.tokens[i] = static_cast<std::int32_t>(key % vocab);
                to.targets[i] = static_cast<std::int32_t>((key >> 32) % vocab);
            }
        };
        const float mean = 1.0f / static_cast<float>(stage.tokens() * stage.data_ranks() * of.ranks);
        step.gradients(one_stage_schedule(of.ranks), read, of.huge ? 1e36f : mean);
    }
    StepResult train(int number, const Samples& of = {}) {
        gradients(number, of);
        step.update(number, how.lr);
        return step.result();
    }

    // Returns the exact weights, if the optimizer keeps them apart from the parameters: masters.
    const OptimizerState* masters() {
        const std::vector<OptimizerState>& states = step.optimizer().states();
        const auto found = std::ranges::find_if(states, &OptimizerState::is_weights);
        return found == states.end() ? nullptr : &*found;
    }
    // Returns what this rank owns of a state, or of the exact weights (""), one tensor after the other.
    Floats values(const std::string& state = "") {
        const TrainedTensors tensors = tensors_of(step);   // waits for all that still travels
        if (!state.empty()) return owned(step.optimizer().state(state));
        return masters() != nullptr ? owned(masters()->values.as<float>()) : owned(tensors.parameters);
    }
    template <class X>
    Floats owned(const ModelState<X>& values) {
        Floats all;
        for (const TensorLayout& place : values.storage().tensors()) {
            const auto buffer = values.unit(place.slot);
            const auto from = static_cast<std::size_t>(values.owned(place.param) - buffer.data());
            for (auto value : buffer.download(stream, from, elements(place))) all.push_back(static_cast<float>(value));
        }
        return all;
    }
    // Puts values in the place of the exact weights, for a rank that owns all.
    void set_weights(const Floats& all) {
        auto next = all.begin();
        for (const TensorLayout& place : stage.storage().tensors()) {
            const Floats part(next, next + static_cast<std::ptrdiff_t>(elements(place)));
            next += static_cast<std::ptrdiff_t>(part.size());
            auto put = [&]<class X>(const ModelState<X>& state) {
                std::vector<X> rounded(part.size());
                std::ranges::transform(part, rounded.begin(), parameter_of<X>);
                state.unit(place.slot)
                    .upload(rounded, stream,
                            static_cast<std::size_t>(state.owned(place.param) - state.unit(place.slot).data()));
                wait_for(stream);
            };
            put(stage.parameters());
            if (masters() != nullptr) put(masters()->values.as<float>());
        }
    }

private:
    // Returns how many elements this rank owns: without padding if it owns all.
    std::size_t elements(const TensorLayout& place) const {
        const bool cut = is_sharded(StateKind::optimizer, stage.storage().place().zero_stage);
        return static_cast<std::size_t>(cut ? stage.storage().padded_elements(place, StateKind::optimizer)
                                            : place.elements);
    }
    static StageOptions stage_options(World* world, int zero, bool local) {
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

template <class X>
double distance(const Floats& a, const std::vector<X>& b) {
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

// Saves a checkpoint of a step. Collective.
inline void save(TestRank& me, Trainee& own, const std::string& folder, int step) {
    const Gatherer gatherer(own.stage.storage(), own.groups.stage, true, me.arena, me.stream, 100, own.groups.all);
    RunState state;
    state.step = step;
    state.of_step = own.step.state(step);
    save_training_state(real_files(), folder, state, tensors_of(own.step), {}, gatherer,
                        {me.rank(), me.ranks(), [&](const std::string& text) { return me.world.gather_text(text); }});
}
inline void load(Trainee& own, const std::string& folder, int step, bool reset = false) {
    const RunState state = load_training_state(real_files(), folder + "/" + checkpoint_name(step), tensors_of(own.step),
                                               own.stream, OptimizerKind::adamw, reset);
    own.step.restore(state.of_step);
}

}   // namespace trainee_testing
