// ZeRO's traffic around passes whose units do not go in step, as chunks of a pipeline will; and memory in turns.
#include "llmc/parallel/zero.h"

#include "llmc/cuda_on_cpu/queue/queue.h"
#include "llmc/kernels/init.cuh"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr int ranks = 2, micro_batches = 3;

// One rank with the states of a small model, as a stage would make them.
struct Rank {
    explicit Rank(TestRank& its_test, int zero_stage, int layer_sets = zero_layer_sets)
        : test(its_test),
          storage(ParamTable(custom_model_config(4, 2, 32, 16, 100)),
                  RankLayout{test.world.mesh(), test.world.at(), zero_stage}, {{{0, 4}}, true, true}),
          states{kept<floatX>(StateKind::parameters), unsharded<floatX>(StateKind::parameters, layer_sets),
                 kept<float>(StateKind::gradients), unsharded<float>(StateKind::gradients, layer_sets)},
          zero(std::make_unique<Zero>(storage, states, ZeroGroups{&test.all}, test.arena, test.stream)) {
        states.parameters.zero(test.stream);
    }

    template <class T>
    ModelState<T> kept(StateKind state) {
        return {test.arena, text("kept ", static_cast<int>(state)), storage, state};
    }
    template <class T>
    ModelState<T> unsharded(StateKind state, int sets) {
        if (!is_sharded(state, storage.place().zero_stage)) return kept<T>(state);
        return ModelState<T>::rotating(test.arena, text("unsharded ", static_cast<int>(state)), storage, sets);
    }

    TestRank& test;
    ParamStorage storage;
    ZeroStates states;
    std::unique_ptr<Zero> zero;
};

// Returns the value that micro-batch `m` adds to every gradient of a unit.
float part_of(int rank, int slot, int m) { return static_cast<float>(1 + rank + 10 * slot + 100 * m); }

void backward_of_unit(Rank& me, int slot, int m) {
    const bool sharded = is_sharded(StateKind::gradients, me.storage.place().zero_stage);
    const StateBuffers& state = sharded ? me.states.unsharded_gradients : me.states.gradients;
    const DeviceBuffer<float> gradients = state.as<float>().unit(slot);
    float value = 0;   // whole gradients are added to by backward itself
    for (int i = sharded ? m : 0; i <= m; i++) value += part_of(me.test.rank(), slot, i);
    me.zero->gradients_begin(slot);
    fill(gradients.data(), static_cast<std::int64_t>(gradients.size()), value, me.test.stream);
    me.zero->gradients_ready(slot, true);
}

// Returns the error with which `work` is refused; "" if it is not.
template <class Work>
std::string error_of(Work&& work) {
    try {
        work();
    } catch (const Error& error) {
        return error.message();
    }
    return "";
}

// Reads what a pass fetches for its entries, layer after layer. What the device finds wrong with that; "": nothing.
std::string forward_fault(TestRank& test, int layer_sets) {
    Rank me(test, 3, layer_sets);
    const std::vector<std::vector<int>> uses{{1}, {2}, {3}, {4}};
    auto out = test.arena.allocate<float>("out", me.states.unsharded_parameters.unit(1).size());
    try {
        me.zero->pass_begins(uses);
        for (const std::vector<int>& use : uses) {
            const DeviceBuffer<floatX> layer = me.states.unsharded_parameters.unit(use[0]);
            me.zero->use_begins();
            cast(out.data(), layer.data(), static_cast<std::int64_t>(layer.size()), test.stream);
            me.zero->use_ends();
        }
        CUDA_CHECK(cudaDeviceSynchronize());
    } catch (const Error& error) {   // a race is found when the later of the two is asked for
        const std::string fault = host::take_fault();
        return fault.empty() ? error.message() : fault;
    }
    return "";
}

}   // namespace

TEST_CASE("zero: first and last micro-batch are counted for each unit alone") {
    for (int stage = 0; stage <= 3; stage++) {
        INFO("ZeRO ", stage);
        on_ranks(ranks, [stage](TestRank& test) {
            Rank me(test, stage);
            me.zero->begin_step(micro_batches);
            // the upper layers have done all their micro-batches before the lower ones begin
            for (int m = 0; m < micro_batches; m++) {
                for (int slot : {5, 4, 3}) backward_of_unit(me, slot, m);
            }
            for (int m = 0; m < micro_batches; m++) {
                for (int slot : {2, 1, 0}) backward_of_unit(me, slot, m);
            }
            me.zero->finish_gradients();
            for (int slot : {0, 1, 2, 3, 4, 5}) {
                float expected = 0;
                for (int r = 0; r < ranks; r++) {
                    for (int m = 0; m < micro_batches; m++) expected += part_of(r, slot, m);
                }
                const int param = me.storage
                                      .tensors()[static_cast<std::size_t>(
                                          me.storage.units()[static_cast<std::size_t>(slot)].tensors[0])]
                                      .param;
                float found = 0;
                CUDA_CHECK(cudaMemcpyAsync(&found, me.states.gradients.owned(param).data, sizeof found,
                                           cudaMemcpyDeviceToHost, test.stream));
                CUDA_CHECK(cudaStreamSynchronize(test.stream));
                test.require(found == expected, "unit ", slot, ": ", found, " instead of ", expected);
            }
        });
    }
}

TEST_CASE("zero: gradients that are ready once too often are a bug that names the unit") {
    on_ranks(ranks, [](TestRank& test) {
        Rank me(test, 2);
        me.zero->begin_step(1);
        backward_of_unit(me, 3, 0);
        const std::string message = error_of([&] { backward_of_unit(me, 3, 1); });
        test.require(message.find("gradients of h.2 are ready more than 1 times") != std::string::npos, message);
    });
}

TEST_CASE("zero: gradients that are ready once too seldom are a bug that names the unit") {
    for (int stage = 0; stage <= 3; stage++) {
        INFO("ZeRO ", stage);
        on_ranks(ranks, [stage](TestRank& test) {
            Rank me(test, stage);
            me.zero->begin_step(2);
            for (int m = 0; m < 2; m++) {
                for (int slot : {5, 4, 3, 2, 1, 0}) {
                    if (m == 0 || slot != 3) backward_of_unit(me, slot, m);
                }
            }
            const std::string message = error_of([&] { me.zero->finish_gradients(); });
            test.require(message.find("gradients of h.2 were ready 1 times in a step of 2") != std::string::npos,
                         message);
        });
    }
}

TEST_CASE("zero: layers that share memory may be used one after the other, and one layer twice, as chunks need") {
    on_ranks(ranks, [](TestRank& test) {
        Rank me(test, 3);
        const ModelState<floatX>& kept = me.states.parameters;
        for (int slot = 0; slot < 6; slot++) {
            fill(kept.unit(slot).data(), static_cast<std::int64_t>(kept.unit(slot).size()), 10.0f + slot, test.stream);
        }
        const std::vector<std::vector<int>> uses{{0}, {1}, {3}, {3}, {2}, {4}, {4}, {3}};   // h.0, h.2; h.1, h.3
        auto found = test.arena.allocate<float>("found", uses.size());
        test.all.reset_traffic();
        me.zero->pass_begins(uses);
        std::size_t fetched = 0;
        for (std::size_t i = 0; i < uses.size(); i++) {
            const DeviceBuffer<floatX> unit = me.states.unsharded_parameters.unit(uses[i][0]);
            me.zero->use_begins();
            cast(found.data() + i, unit.data() + unit.size() - 1, 1, test.stream);
            me.zero->use_ends();
            if (i == 0 || uses[i] != uses[i - 1]) fetched += unit.size() * sizeof(floatX) / ranks;
        }
        const std::vector<float> values = found.download(test.stream);
        for (std::size_t i = 0; i < uses.size(); i++) {
            test.require(values[i] == 10.0f + static_cast<float>(uses[i][0]), "use ", i, " reads ", values[i]);
        }
        test.require(test.all.traffic().all_gather == static_cast<double>(fetched), "a unit was fetched again");
    });
}

TEST_CASE("zero: layers whose memory takes turns wrongly are a race between the gather and the reader, by name") {
    on_ranks(ranks, [](TestRank& test) {
        const std::string right = forward_fault(test, zero_layer_sets);
        test.require(right.empty(), right);
        const std::string wrong = forward_fault(test, 1);   // the next layer comes where this one is being read
        test.require(wrong.find("all-gather") != std::string::npos && wrong.find("cast_kernel") != std::string::npos,
                     "instead of a race: ", wrong);
    });
}
