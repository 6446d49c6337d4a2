// The certificate sees what goes wrong in mixtures of experts: each of these mistakes makes it fail. (Sums over holders
// dropped or made twice: certificate_experts_test.cpp; biases inside the weights: experts_test.cu and test_gpt.cu.)
#include <atomic>
#include <numeric>
#include <utility>

#include "dev/test/certificate/expert_layouts_testing.h"
#include "llmc/kernels/experts/router.cuh"

using namespace certificate;

namespace {

// A recompute that counts its tokens once more. It comes after the micro-batch's forward, in which alone an exchange
// begins, and passes through the layers from the last to the first.
class CountsAgain : public AroundExpertRanks {
public:
    using AroundExpertRanks::AroundExpertRanks;
    const Stage* stage = nullptr;
    int hits = 0;

    void begin_exchange(const void* choice, const std::int32_t* offsets, int rows, int E,
                        std::int32_t* counts) override {
        begun_ = choice;
        AroundExpertRanks::begin_exchange(choice, offsets, rows, E, counts);
    }
    void copy_held_offsets(std::int32_t* offsets, const void* choice, cudaStream_t stream) override {
        AroundExpertRanks::copy_held_offsets(offsets, choice, stream);
        if (std::exchange(begun_, nullptr) == choice) return;   // forward
        const ModelConfig& config = stage->config();
        const auto layers = static_cast<int>(config.layers), E = static_cast<int>(config.experts);
        const int layer = layers - 1 - hits++ % layers, rows = stage->sizes().residual_rows();
        count_experts(stage->expert_totals().counts.data() + layer * E, static_cast<const std::int32_t*>(choice), rows,
                      E, static_cast<int>(config.experts_per_token()), {rows, rows, rows, 0}, stream);
    }

private:
    const void* begun_ = nullptr;
};

}   // namespace

TEST_CASE("certificate: counts of a recompute counted again make it fail") {
    Layout layout = dealt(2, experts(2, 0, 2, Recompute::block));
    for (const bool again : {false, true}) {
        if (again) {
            layout.expert_ranks = [](World& world, const StageOptions& options, const ModelConfig& config,
                                     const Arena& arena) -> std::unique_ptr<ExpertRanks> {
                return std::make_unique<CountsAgain>(make_expert_ranks(world, options, config, arena));
            };
        }
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            CountsAgain* const counts_again = again ? static_cast<CountsAgain*>(rank.expert_ranks()) : nullptr;
            if (again) counts_again->stage = &rank.stage();
            rank.gradients(1);
            const std::vector<std::int32_t> counts = rank.stage().expert_totals().counts.download(rank.stream());
            const int all = std::accumulate(counts.begin(), counts.end(), 0),
                      once = layout.layers * sequences * T * layout.experts_per_token;
            me.require(all == (again ? 2 : 1) * once, all, " tokens instead of ", once);
            me.require(!again || counts_again->hits == layout.micro_batches * layout.layers, "recomputes");
        });
    }
}

// One rank adds the squares of one of its experts' gradients to the norm's once more; or, with two holders of each
// expert, one of them adds those of all that it holds, as if it counted what the other one counts.
TEST_CASE("certificate: an expert counted twice in the norm makes it fail") {
    const auto ranks = in_bf16 ? std::vector<int>{} : std::vector{2, 4};
    if (ranks.empty()) MESSAGE("SKIPPED an expert counted twice in the norm is within bf16's tolerance; fp32 shows it");
    for (const int dp : ranks) {
        Layout layout = dealt(2, experts(dp, 0, 1));
        const Result expected = alone(layout, 1, 1);
        std::string story;
        std::atomic<int> hits = 0;
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            if (me.rank() == 0) {
                rank.groups().all->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                    if (call.type == ncclFloat64 && call.count == step_sums) {
                        const ParamStorage& storage = rank.stage().storage();
                        const auto gradients = rank.stage().gradients().kept().as<float>();
                        const TensorLayout& place = *storage.find(storage.table().index("mlp.experts.c_fc.weight", 0));
                        const auto held = static_cast<std::size_t>(place.elements);
                        const std::vector<float> values =
                            gradients.unit(place.slot)
                                .download(call.stream,
                                          static_cast<std::size_t>(storage.tensor_offset(place, gradients.state())),
                                          dp == 2 ? held / 4 : held);
                        double* const sum = static_cast<double*>(call.out) + step_sums - 1;
                        double squares = 0;
                        CUDA_CHECK(cudaMemcpyAsync(&squares, sum, sizeof squares, cudaMemcpyDeviceToHost, call.stream));
                        CUDA_CHECK(cudaStreamSynchronize(call.stream));
                        for (const float g : values) squares += static_cast<double>(g) * static_cast<double>(g);
                        CUDA_CHECK(cudaMemcpyAsync(sum, &squares, sizeof squares, cudaMemcpyHostToDevice, call.stream));
                        hits++;
                    }
                    make(call);
                });
            }
            const Result found = rank.train(1);
            CUDA_CHECK(cudaDeviceSynchronize());
            rank.groups().all->set_tap(nullptr);
            if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
        });
        if (!ran) return;
        story = from_first_process(story);
        CHECK((hits == 1 || !ranks_are_threads()));
        CHECK(story.find("first gradient norm") != std::string::npos);
        CHECK(std::count(story.begin(), story.end(), '\n') == 1);   // nothing else
    }
}
