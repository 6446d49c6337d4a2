// Gradients that are applied a step late (--staleness 1): against a plain loop with two buffers of gradients, what a
// checkpoint restores, and which steps apply nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "llmc/base/rng.h"
#include "llmc/model/download_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/health.h"

namespace {

constexpr int B = 2, T = 16, vocab = 61;
using Floats = std::vector<float>;

ModelConfig model() { return custom_model_config(2, 2, 32, T, vocab); }

OptimizerOptions late(int staleness = 1) {
    OptimizerOptions how;
    how.grad_clip = 0.5f;   // these models' norms are above it
    how.eps = 1e-3f;
    how.staleness = staleness;
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
          groups(world ? training_groups(*world, model(), 1) : TrainingGroups{}),
          stream(its_stream),
          stage(model(), options(world, zero), arena, stream),
          step((initialize_parameters(stage.parameters(), 1, stream), stage), how, arena, groups) {}

    // Makes the gradients of a step: of this rank's samples, or of those of the first `micro_batches` ranks. `huge`: so
    // large that no float holds their norm, though the loss is finite.
    void gradients(int number, int micro_batches = 1, bool huge = false) {
        auto read = [&](int micro_batch, const MicroBatch& to) {
            for (std::size_t i = 0; i < to.tokens.size(); i++) {
                to.tokens[i] = 1, to.targets[i] = 2;   // whose gradients add up
                if (huge) continue;
                const std::uint64_t rank = static_cast<std::uint64_t>(stage.data_rank() + micro_batch);
                const std::uint64_t key =
                    mix64(static_cast<std::uint64_t>(number) * 1000003 + i + rank * to.tokens.size());
                to.tokens[i] = static_cast<std::int32_t>(key % vocab);
                to.targets[i] = static_cast<std::int32_t>((key >> 32) % vocab);
            }
        };
        const float mean = 1.0f / static_cast<float>(stage.tokens() * stage.data_ranks() * micro_batches);
        step.gradients(one_stage_schedule(micro_batches), read, huge ? 1e36f : mean);
    }
    StepResult train(int number, bool huge = false) {
        gradients(number, 1, huge);
        step.update(number, how.lr);
        return step.result();
    }

    // What this rank owns of a state, or of the exact weights (""), one tensor after the other.
    Floats values(const std::string& state = "") {
        const TrainedTensors tensors = tensors_of(step);
        const auto masters = std::ranges::find_if(tensors.states, &OptimizerState::is_weights);
        if (!state.empty()) return owned(step.optimizer().state(state));
        return masters != tensors.states.end() ? owned(masters->values) : owned(tensors.parameters);
    }
    template <class X>
    Floats owned(const ModelState<X>& values) {
        Floats all;
        for (const TensorLayout& place : values.storage().tensors()) {
            const auto count = static_cast<std::size_t>(elements(place));
            const auto buffer = values.unit(place.slot);
            const auto from = static_cast<std::size_t>(values.owned(place.param) - buffer.data());
            for (auto value : buffer.download(stream, from, count)) all.push_back(static_cast<float>(value));
        }
        return all;
    }
    // Puts values in the place of the parameters, for a rank that owns all.
    void set_parameters(const std::vector<double>& all) {
        auto next = all.begin();
        for (const TensorLayout& place : stage.storage().tensors()) {
            std::vector<floatX> part;
            for (std::int64_t i = 0; i < elements(place); i++) {
                part.push_back(static_cast<floatX>(static_cast<float>(*next++)));
            }
            const auto buffer = stage.parameters().unit(place.slot);
            buffer.upload(part, stream,
                          static_cast<std::size_t>(stage.parameters().owned(place.param) - buffer.data()));
            wait_for(stream);
        }
    }

private:
    // Elements that this rank owns: without padding if it owns all.
    std::int64_t elements(const TensorLayout& place) const {
        const bool cut = is_sharded(StateKind::optimizer, stage.storage().place().zero_stage);
        return cut ? stage.storage().padded_elements(place, StateKind::optimizer) : place.elements;
    }
    static StageOptions options(World* world, int zero) {
        StageOptions result;
        result.B = B, result.T = T;
        if (world != nullptr) result.place = {world->mesh(), world->at(), world->ranks() == 1 ? 0 : zero};
        return result;
    }
};

double distance(const Floats& a, const std::vector<double>& b) {
    ENSURE(a.size() == b.size(), a.size(), " and ", b.size(), " values");
    double most = 0;
    for (std::size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    return most;
}
std::vector<double> wide(const Floats& values) { return {values.begin(), values.end()}; }
bool all_zero(const Floats& values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
}

// AdamW written down: a step computes gradients with the weights of now, and applies those of the step before.
struct PlainLoop {
    Trainee maker;   // of gradients
    std::vector<double> weights, m, v, before;
    int updates = 0;
    double norm = 0;   // of the gradients that the latest step applied

    PlainLoop(Arena& arena, cudaStream_t stream) : maker(late(0), arena, stream), weights(wide(maker.values())) {
        m.assign(weights.size(), 0), v.assign(weights.size(), 0);
    }
    void train(int number, int ranks) {
        maker.set_parameters(weights);
        maker.gradients(number, ranks);
        const std::vector<double> fresh = wide(maker.owned(maker.stage.gradients().kept().as<float>()));
        if (!before.empty()) apply(before);
        before = fresh;
    }
    void apply(const std::vector<double>& gradient) {
        const OptimizerOptions& how = maker.how;
        const double b1 = static_cast<double>(how.beta1), b2 = static_cast<double>(how.beta2);
        double squares = 0;
        for (double g : gradient) squares += g * g;
        norm = std::sqrt(squares), updates++;
        const double scale = std::min(1.0, static_cast<double>(how.grad_clip) / norm);
        for (std::size_t i = 0; i < gradient.size(); i++) {
            const double g = scale * gradient[i];
            m[i] = b1 * m[i] + (1 - b1) * g, v[i] = b2 * v[i] + (1 - b2) * g * g;
            const double mean = m[i] / (1 - std::pow(b1, updates)), square = v[i] / (1 - std::pow(b2, updates));
            weights[i] -= static_cast<double>(how.lr) * mean / (std::sqrt(square) + static_cast<double>(how.eps));
        }
    }
};

void save(TestRank& me, Trainee& own, const std::string& folder, int step) {
    const Gatherer gatherer(own.stage.storage(), own.groups.stage, true, me.arena, me.stream, 100, own.groups.all);
    RunState state;
    state.step = step;
    save_training_state(real_files(), folder, state, tensors_of(own.step), {}, gatherer,
                        {me.rank(), me.ranks(), [&](const std::string& text) { return me.world.gather_text(text); }});
}
void load(Trainee& own, const std::string& folder, int step, bool reset = false) {
    load_training_state(real_files(), folder + "/" + checkpoint_name(step), tensors_of(own.step), own.stream,
                        OptimizerKind::adamw, reset);
}

}   // namespace

TEST_CASE(
    "staleness: each step applies the gradients of the step before, as a plain loop does; the first applies none") {
    constexpr double tolerance = sizeof(floatX) == sizeof(float) ? 1e-6 : 1e-4;
    for (const int ranks : {1, 2}) {
        for (const int zero : {0, 1}) {
            on_ranks(ranks, [&](TestRank& me) {
                Trainee own(late(), me.arena, me.stream, &me.world, zero);
                PlainLoop plain(me.arena, me.stream);
                Trainee in_time(late(0), me.arena, me.stream, &me.world, zero);
                const Floats begin = own.values();
                for (int step = 1; step <= 6; step++) {
                    const StepResult result = own.train(step);
                    in_time.train(step);
                    plain.train(step, ranks);
                    const Floats after = own.values();
                    me.require((after == begin) == (step == 1), "step ", step, " moved: ", after != begin);
                    me.require(std::abs(result.grad_norm - plain.norm) <= 1e-2 * plain.norm, "step ", step, ": norm ",
                               result.grad_norm, " for ", plain.norm);
                    if (zero == 0 || ranks == 1) {
                        const double apart = distance(after, plain.weights);
                        me.require(apart < tolerance, "step ", step, ": a weight is ", apart, " from the plain loop's");
                        const double too_late = distance(in_time.values(), plain.weights);
                        me.require(too_late > 100 * tolerance || step == 1 || tolerance > 1e-5, "step ", step,
                                   ": gradients applied in time come as near: ", too_late);
                    }
                    const std::string differs = differing_replicas(
                        me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors));
                    me.require(differs.empty(), "step ", step, ": ", differs);
                }
            });
        }
    }
}

TEST_CASE("staleness: a run cut after any step goes on to the bit") {
    for (const int zero : {0, 1}) {
        for (const int ranks : {1, 2}) {
            const SharedFolder folder;
            on_ranks(ranks, [&](TestRank& me) {
                Trainee own(late(), me.arena, me.stream, &me.world, zero);
                for (int step = 1; step <= 5; step++) {
                    own.train(step);
                    save(me, own, folder / "run", step);
                    me.require(!all_zero(own.values(kDelayedGradient)), "no gradients are kept");
                }
                for (int cut = 1; cut <= 4; cut++) {
                    Trainee resumed(late(), me.arena, me.stream, &me.world, zero);
                    resumed.train(1);   // what is overwritten, while it still travels
                    load(resumed, folder / "run", cut);
                    for (int step = cut + 1; step <= 5; step++) resumed.train(step);
                    me.require(resumed.values() == own.values(), "cut after step ", cut, ": other weights");
                    me.require(resumed.values("v") == own.values("v") &&
                                   resumed.values(kDelayedGradient) == own.values(kDelayedGradient),
                               "cut after step ", cut, ": another state");
                }
            });
        }
    }
}

TEST_CASE("staleness: one rank goes on with the gradients that two have kept, under ZeRO 0 and 1") {
    for (const int zero : {0, 1}) {
        const SharedFolder folder;
        Floats of_rank;   // of the first one, which owns all under ZeRO 0
        on_ranks(2, [&](TestRank& me) {
            Trainee own(late(), me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 2; step++) own.train(step);
            save(me, own, folder / "two", 2);
            const Floats kept = own.values(kDelayedGradient);
            own.train(3);
            save(me, own, folder / "two", 3);   // whose weights are what one rank must come to
            if (me.rank() == 0) of_rank = kept;
        });
        if (!ranks_are_threads()) return;
        on_ranks(1, [&](TestRank& me) {
            Trainee own(late(), me.arena, me.stream), goal(late(), me.arena, me.stream);
            load(own, folder / "two", 2);
            load(goal, folder / "two", 3);
            const Floats kept = own.values(kDelayedGradient);
            me.require(!all_zero(kept) && (zero == 1 || kept == of_rank), "other gradients than were kept");
            own.gradients(3);   // any: they are not applied
            own.step.update(3, own.how.lr);
            const double apart = distance(own.values(), wide(goal.values()));
            me.require(apart < 1e-6, "a weight is ", apart, " from that of two ranks");
        });
    }
}

TEST_CASE("staleness: gradients that are not finite leave out the next step's update, and no other") {
    on_ranks(2, [&](TestRank& me) {
        for (const int zero : {0, 1}) {
            Trainee own(late(), me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 6; step++) {
                const Floats before = own.values();
                const StepResult result = own.train(step, step == 3);
                const bool moves = step != 1 && step != 4;
                me.require((own.values() != before) == moves, "step ", step, moves ? " applied nothing" : " moved");
                me.require(std::isfinite(result.grad_norm) == (step != 4), "step ", step, ": norm ", result.grad_norm);
            }
        }
    });
}

TEST_CASE("staleness: an update that the host leaves out costs the gradients of one step") {
    on_ranks(2, [&](TestRank& me) {
        Trainee own(late(), me.arena, me.stream, &me.world, 1);
        for (int step = 1; step <= 2; step++) own.train(step);
        const Floats before = own.values(), kept = own.values(kDelayedGradient);
        own.gradients(3);
        own.step.skip_update(3);
        own.step.result();
        me.require(own.values() == before, "a weight moved");
        me.require(own.values(kDelayedGradient) != kept, "the gradients that were left out are still kept");
        own.train(4);
        me.require(own.values() != before, "the next step applied nothing");
    });
}

TEST_CASE("staleness: a run without kept gradients, or with new moments, applies none in its first step") {
    const SharedFolder folder;
    on_ranks(2, [&](TestRank& me) {
        Trainee in_time(late(0), me.arena, me.stream, &me.world), own(late(), me.arena, me.stream, &me.world, 1);
        in_time.train(1);
        own.train(1);
        save(me, in_time, folder / "in time", 1);
        save(me, own, folder / "late", 1);
        for (const bool reset : {false, true}) {
            load(own, folder / (reset ? "late" : "in time"), 1, reset);
            me.require(all_zero(own.values(kDelayedGradient)), "gradients of another run");
            const Floats before = own.values();
            own.train(2);
            me.require(own.values() == before, "a weight moved in the first step");
            own.train(3);
            me.require(own.values() != before, "no weight moved in the second step");
        }
        load(in_time, folder / "late", 1);   // a run in time leaves them out
        in_time.train(2);
    });
}
