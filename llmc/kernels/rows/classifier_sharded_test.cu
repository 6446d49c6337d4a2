#include "llmc/kernels/rows/classifier_sharded.cuh"

#include <algorithm>

#include "llmc/kernels/kernel_testing.h"

namespace {

// Shards of one vocabulary, combined on the host as ranks would, against the classifier of a whole one.
template <class Real>
void check_sharded(int rows, int V, int shards, int columns) {
    KernelTest test;
    const int whole = shards * columns;
    const Doubles logits =
        random_values<Real>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(whole), 4.0, 1);
    std::vector<int> targets(static_cast<std::size_t>(rows));
    for (int i = 0; i < rows; i++) targets[static_cast<std::size_t>(i)] = i == 2 ? -1 : i * 37 % V;
    targets[0] = V - 1;
    const DeviceBuffer<int> device_targets = test.ints(targets);
    const float dloss = 1.0f / 32, z_loss = 0.1f;

    auto expected = test.tensor<Real>(logits);
    auto expected_losses = test.output<float>(static_cast<std::size_t>(rows));
    fused_classifier<Real>({expected.data(), expected_losses.data(), device_targets.data(), rows, V, whole, dloss,
                            ClassifierOutput::loss_and_gradient, z_loss},
                           test.stream);

    std::vector<TestTensor<Real>> parts;
    std::vector<TestTensor<float>> losses, maxima, sums;
    std::vector<ShardedClassifier<Real>> of_shard;
    for (int s = 0; s < shards; s++) {
        Doubles part;
        for (int row = 0; row < rows; row++) {
            const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row) * whole + s * columns;
            part.insert(part.end(), first, first + columns);
        }
        parts.push_back(test.tensor<Real>(part));
        losses.push_back(test.output<float>(static_cast<std::size_t>(rows)));
        maxima.push_back(test.output<float>(static_cast<std::size_t>(rows)));
        sums.push_back(test.output<float>(2 * static_cast<std::size_t>(rows)));
        of_shard.push_back(
            {{parts.back().data(), losses.back().data(), device_targets.data(), rows,
              std::clamp(V - s * columns, 0, columns), columns, dloss, ClassifierOutput::loss_and_gradient, z_loss},
             s * columns,
             maxima.back().data(),
             sums.back().data()});
    }
    auto combine = [&](std::vector<TestTensor<float>>& of_ranks, auto&& op) {
        std::vector<float> all = of_ranks[0].raw();
        for (auto& of_rank : of_ranks) {
            const std::vector<float> own = of_rank.raw();
            for (std::size_t i = 0; &of_rank != &of_ranks[0] && i < all.size(); i++) all[i] = op(all[i], own[i]);
        }
        for (auto& of_rank : of_ranks) {
            CUDA_CHECK(cudaMemcpyAsync(of_rank.data(), all.data(), all.size() * sizeof(float), cudaMemcpyHostToDevice,
                                       test.stream));
        }
        CUDA_CHECK(cudaStreamSynchronize(test.stream));
    };
    for (const auto& shard : of_shard) sharded_classifier_begin(shard, test.stream);
    combine(maxima, [](float a, float b) { return std::max(a, b); });
    for (const auto& shard : of_shard) sharded_classifier_relate(shard, test.stream);
    combine(sums, [](float a, float b) { return a + b; });
    for (const auto& shard : of_shard) sharded_classifier_finish(shard, test.stream);

    const Doubles loss = expected_losses.values(), gradient = expected.values();
    for (int s = 0; s < shards; s++) {
        const std::size_t at = static_cast<std::size_t>(s);
        const std::string what = text("rows=", rows, " V=", V, ", shard ", s, " of ", shards);
        CHECK(same_bits(losses[at].raw(), losses[0].raw()));
        check_close(losses[at].values(), loss, Doubles(loss.size(), 64 * unit<float>), what + " loss");
        Doubles own;
        for (int row = 0; row < rows; row++) {
            const auto first = gradient.begin() + static_cast<std::ptrdiff_t>(row) * whole + s * columns;
            own.insert(own.end(), first, first + columns);
        }
        check_close(parts[at].values(), own, Doubles(own.size(), dloss * (64 * unit<float> + unit<Real>)), what);
    }
}

}   // namespace

TEST_CASE("classifier over shards of the vocabulary: losses and gradients are those of the whole") {
    check_sharded<float>(5, 97, 1, 97);
    check_sharded<float>(5, 97, 3, 48);
    check_sharded<bf16>(7, 97, 6, 24);   // the last has none of it
    check_sharded<float>(4, 5, 3, 8);    // the last two have none
    check_sharded<bf16>(3, 1000, 2, 504);
}
