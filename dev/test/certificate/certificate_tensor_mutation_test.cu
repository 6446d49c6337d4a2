// The certificate sees what goes wrong when tp ranks share a model: each of these mistakes makes it fail. (Exchanges
// dropped or scaled, the target's logit counted twice, the maxima not reduced: certificate_tensor_test.cpp; a stray
// wait of the host: overlap_tensor_host_test.cpp.)
#include <atomic>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/optim/update.cuh"

using namespace certificate;

namespace {

Layout three_ranks() {
    Layout layout;
    layout.tp = 3, layout.sequence_parallel = true;
    return layout;
}

// Returns the certificate's findings on rank 0; none if too few processes were started.
std::optional<std::string> verdict(const Layout& layout, int steps, const std::function<void(Rank&, TestRank&)>& damage,
                                   const std::function<void(Rank&)>& mend = {}) {
    const Result expected = train_alone(1, steps);
    std::string story;
    const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
        damage(rank, me);
        const Result found = rank.train(steps);
        CUDA_CHECK(cudaDeviceSynchronize());
        if (mend) mend(rank);
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
    });
    if (!ran) return std::nullopt;
    return from_first_process(story);
}

template <class T>
__global__ void add_to_rows(T* rows, const T* bias, int channels) {
    T* const row = rows + static_cast<std::int64_t>(blockIdx.x) * channels;
    for (int c = static_cast<int>(threadIdx.x); c < channels; c += static_cast<int>(blockDim.x)) {
        row[c] = static_cast<T>(static_cast<float>(row[c]) + static_cast<float>(bias[c]));
    }
}

// Adds the projection's bias to this rank's part of a sum, if it is not the rank that adds it. `number`: of the rank's
// sums. A step makes the embedding's, each layer's two projections', and backward as many that no bias belongs to.
void add_bias(const Rank& rank, const CommCall& call, int number) {
    const Stage& stage = rank.stage();
    const auto layers = static_cast<int>(stage.config().layers), at = number % (2 + 4 * layers) - 1;
    if (at < 0 || at >= 2 * layers || stage.storage().place().at.tp == 0) return;
    const int channels = stage.sizes().C;
    const floatX* const bias = stage.parameters().tensor(at % 2 == 0 ? "attn.c_proj.bias" : "mlp.c_proj.bias", at / 2);
    const Launch where{dim3(static_cast<unsigned>(stage.sizes().rows())), dim3(32), 0, call.stream};
    launch(add_to_rows<floatX>, where, static_cast<floatX*>(const_cast<void*>(call.in)), bias, channels);
}

}   // namespace

// Biases are zero at first, so it takes an update until it shows.
TEST_CASE("certificate: a row-parallel bias that is added on all ranks makes it fail") {
    Layout layout = three_ranks();
    const auto damage = [](Rank& rank, TestRank&) {
        rank.groups().tensor->set_tap([&rank, sums = 0](const CommCall& call, const Communicator::Make& make) mutable {
            if (std::string_view(call.operation) == "reduce-scatter") add_bias(rank, call, sums++);
            make(call);
        });
    };
    const auto story = verdict(layout, 4, damage, [](Rank& rank) { rank.groups().tensor->set_tap(nullptr); });
    if (!story) return;
    CHECK(story->find("loss of step 4") != std::string::npos);
    CHECK(story->find("gradient of") == std::string::npos);   // gradients are compared in the first step
}

TEST_CASE("certificate: the norm with what tp does not cut counted on every rank makes it fail") {
    std::atomic<int> hits = 0;
    const auto damage = [&hits](Rank& rank, TestRank& me) {
        if (me.world.at().tp == 0) return;
        rank.groups().all->set_tap([&](const CommCall& call, const Communicator::Make& make) {
            if (call.type == ncclFloat64 && call.count == step_sums) {
                double squares = 0;
                const auto gradients = rank.stage().gradients().kept().as<float>();
                for (const TensorLayout& place : rank.stage().storage().tensors()) {
                    const TensorSpec& tensor = rank.stage().table()[place.param].tensor;
                    if (tensor.cut != TensorCut::none) continue;
                    for (const float g : download_tensor(gradients, place.param, call.stream)) {
                        squares += static_cast<double>(g) * static_cast<double>(g);
                    }
                }
                double* const sum = static_cast<double*>(call.out) + step_sums - 1;
                double own = 0;
                CUDA_CHECK(cudaMemcpyAsync(&own, sum, sizeof own, cudaMemcpyDeviceToHost, call.stream));
                CUDA_CHECK(cudaStreamSynchronize(call.stream));
                own += squares;
                CUDA_CHECK(cudaMemcpyAsync(sum, &own, sizeof own, cudaMemcpyHostToDevice, call.stream));
                hits++;
            }
            make(call);
        });
    };
    const auto story = verdict(three_ranks(), 1, damage, [](Rank& rank) { rank.groups().all->set_tap(nullptr); });
    if (!story) return;
    CHECK((hits > 0 || !ranks_are_threads()));
    CHECK(story->starts_with("first gradient norm"));
    CHECK(std::count(story->begin(), story->end(), '\n') == 1);   // nothing else
}

// Each rank takes rows of q, k and v by heads, as the table says, or its third of all rows: q of the first rank, k of
// the second, v of the last.
TEST_CASE("certificate: q, k and v that are cut one behind the other instead of by heads make it fail") {
    const std::vector<std::vector<float>> initial = Rank(Layout{}).parameters();
    for (const bool by_heads : {true, false}) {
        const auto story = verdict(three_ranks(), 1, [&](Rank& rank, TestRank&) {
            const ModelState<floatX>& parameters = rank.stage().parameters();
            const RankLayout& place = rank.stage().storage().place();
            for (int layer = 0; layer < 3; layer++) {
                for (const char* kind : {"attn.c_attn.weight", "attn.c_attn.bias"}) {
                    const int param = parameters.index(kind, layer);
                    TensorSpec tensor = rank.stage().table()[param].tensor;
                    if (!by_heads) tensor.blocks = {};
                    const std::vector<float>& whole = initial[static_cast<std::size_t>(param)];
                    std::vector<floatX> own(static_cast<std::size_t>(tensor.elements() / place.mesh.tp));
                    for (const OwnedRange& range : tp_shard_ranges(tensor, place.mesh.tp, place.at.tp)) {
                        for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                            for (std::int64_t i = 0; i < count; i++) {
                                own[static_cast<std::size_t>(local + i)] =
                                    static_cast<floatX>(whole[static_cast<std::size_t>(global + i)]);
                            }
                        });
                    }
                    CUDA_CHECK(cudaMemcpyAsync(parameters.tensor(param), own.data(), own.size() * sizeof(floatX),
                                               cudaMemcpyHostToDevice, rank.stream()));
                }
            }
            CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
        });
        if (!story) return;
        CHECK(story->empty() == by_heads);
        CHECK((story->find("gradient of h.0.ln_1.weight") != std::string::npos) == !by_heads);
    }
}

#if defined(PRECISION_BF16)
// Adam's first update hardly depends on a gradient's size, so that with the same random bits all but a few elements
// round to the very same values: certificate_tensor_test.cpp holds the product to it.
TEST_CASE("tensor parallelism: stochastic rounding keyed by local elements is seen in what it leaves") {
    Layout layout = three_ranks(), one;
    layout.master_weights = one.master_weights = MasterWeights::none;
    Rank alone(one);
    alone.train(1);
    const std::vector<std::vector<float>> expected = alone.parameters();
    for (const bool by_global_element : {true, false}) {
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            rank.gradients(1);
            const ParamStorage& storage = rank.stage().storage();
            Optimizer& optimizer = rank.step().optimizer();
            const auto gradients = rank.stage().gradients().kept().as<float>();
            std::vector<UpdateRange<floatX>> ranges;
            for (const TensorLayout& place : storage.tensors()) {
                const ParamInfo& info = storage.table()[place.param];
                for (const OwnedRange& owned : owned_ranges(info.tensor, storage.place(), StateKind::optimizer)) {
                    UpdateRange<floatX> range{};
                    range.parameter = rank.stage().parameters().owned(place.param) + owned.local_begin;
                    range.gradient = gradients.owned(place.param) + owned.local_begin;
                    range.m = optimizer.state("m").tensor(place.param) + owned.local_begin;
                    range.v = optimizer.state("v").tensor(place.param) + owned.local_begin;
                    range.count = owned.length;
                    range.weight_decay = info.decays ? 0.1f : 0.0f;
                    range.tensor_key = info.random_tensor();
                    range.span = by_global_element ? owned.global : GlobalSpan{owned.local_begin};
                    ranges.push_back(range);
                }
            }
            const OptimizerOptions adam;
            auto table = make_update_table(rank.arena(), "test/adam", std::move(ranges), rank.stream());
            set_update_step(table, UpdateStep{1e-3f, adam.beta1, adam.beta2, adam.eps, 1, adam.seed}, rank.stream());
            update_weights<AdamW>(table, rank.stream());
            const Gatherer gatherer(storage, rank.groups().stage, true, rank.arena(), rank.stream());
            double different = 0, all = 0;
            for (int param = 0; param < storage.table().size(); param++) {
                const auto found = gatherer.gather(rank.stage().parameters(), param, everywhere);
                for (std::size_t i = 0; i < found.size(); i++) {
                    different += static_cast<float>(found[i]) != expected[static_cast<std::size_t>(param)][i];
                }
                all += static_cast<double>(found.size());
            }
            const double share = different / all;
            me.require(by_global_element ? share < 0.01 : share > 0.1, 100 * share, "% of the parameters differ");
        });
    }
}
#endif
