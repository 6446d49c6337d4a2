// The certificate sees what goes wrong when ranks share sequences: each of these mistakes makes it fail. (A merge
// without log-sum-exp: attention_merge_test.cu; a stray wait of the host: context_overlap_host_test.cu.)
#include <numeric>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/kernels/attention/attention_merge.cuh"
#include "llmc/kernels/rows/embedding.cuh"

using namespace certificate;

namespace {

// A ring of three: the smallest in which gradients of keys travel further than one hop.
Layout ring_of_three() {
    Layout layout;
    layout.cp = 3, layout.seq_len = 48;
    return layout;
}

// Returns the certificate's findings on rank 0; none if too few processes were started.
std::optional<std::string> verdict(const Layout& layout, const std::function<void(Rank&, TestRank&)>& damage = {},
                                   const std::function<TrainingGroups(TrainingGroups)>& other_groups = {}) {
    Layout alone;
    alone.seq_len = layout.seq_len, alone.heads = layout.heads, alone.targets = layout.targets;
    alone.kind = layout.kind;
    const Result expected = Rank(alone).train(2);
    std::string story;
    const bool ran = on_ranks(layout.mesh(), [&](TestRank& me) {
        TrainingGroups groups = training_groups(me.world);
        if (other_groups) groups = other_groups(groups);
        Rank rank(layout, me.world.at(), groups, &me.world);
        if (damage) damage(rank, me);
        const Result found = rank.train(2);
        CUDA_CHECK(cudaDeviceSynchronize());
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
    });
    if (!ran) return std::nullopt;
    return from_first_process(story);
}

// Taps the ring of a rank: `wrong` is given the hops of gradients of keys and values, counted within a backward.
Communicator& ring_of(TestRank& me) {
    const ContextCut cut{me.world.mesh().cp, 1, me.world.at().cp};
    return *me.world.group("cp ring", cut.ring_members());
}

// Overwrites the positions of a rank's tokens: these are numbered from `first` on.
void number_tokens(const Rank& rank, int first) {
    std::vector<int> positions(static_cast<std::size_t>(rank.stage().tokens() / rank.stage().options().B));
    std::iota(positions.begin(), positions.end(), first);
    auto* const kept = const_cast<int*>(rank.stage().attention().positions().list);
    CUDA_CHECK(
        cudaMemcpyAsync(kept, positions.data(), sizeof(int) * positions.size(), cudaMemcpyHostToDevice, rank.stream()));
    CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
}

}   // namespace

TEST_CASE("certificate: sound rings, which the mistakes below are made in") {
    if (const auto story = verdict(ring_of_three())) CHECK(*story == "");
}

// A layer's calls on a ring of N = 3, each a send and a receive: forward 2 hops of keys; backward keys, then gradients
// at steps 2 (sent beside the step) and 3 (home): k k | k k g g.
TEST_CASE("certificate: the last hop of gradients of keys and values dropped makes it fail") {
    const auto story = verdict(ring_of_three(), [](Rank&, TestRank& me) {
        ring_of(me).set_tap([next = 0](const CommCall& call, const Communicator::Make& make) mutable {
            const int layers = 3, forward = layers * 2 * 2, step = layers * (2 + 4) * 2;
            const int number = next++ % step;   // sends and receives of a step
            const bool home = number >= forward && (number - forward) % 8 >= 6;
            if (!home) make(call);
        });
    });
    if (story) CHECK(*story != "");
}

#if defined(PRECISION_FP32)
TEST_CASE("certificate: gradients of keys and values that travel in bf16 make it fail") {
    const auto story = verdict(ring_of_three(), [](Rank& rank, TestRank& me) {
        auto rounded = std::make_shared<DeviceBuffer<bf16>>(rank.arena().allocate<bf16>("test/rounded", 1 << 20));
        ring_of(me).set_tap([next = 0, rounded](const CommCall& call, const Communicator::Make& make) mutable {
            const int layers = 3, forward = layers * 2 * 2, step = layers * (2 + 4) * 2;
            const int number = next++ % step;
            const bool gradients = number >= forward && (number - forward) % 8 >= 4;
            if (gradients && call.in != nullptr) {   // rounds the values before they are sent
                auto* values = static_cast<float*>(const_cast<void*>(call.in));
                const HeadSizes sizes{1, static_cast<int>(call.count / 8), 1, 8};
                ENSURE(call.count <= rounded->size(), "no room for ", call.count);
                copy_heads(contiguous_heads(rounded->data(), sizes.T, 1, 8), contiguous_heads(values, sizes.T, 1, 8),
                           sizes, false, call.stream);
                copy_heads(contiguous_heads(values, sizes.T, 1, 8), contiguous_heads(rounded->data(), sizes.T, 1, 8),
                           sizes, false, call.stream);
            }
            make(call);
        });
    });
    if (story) CHECK(*story != "");
}
#endif

TEST_CASE("certificate: positions in natural order make it fail") {
    const auto story = verdict(ring_of_three(), [](Rank& rank, TestRank& me) {
        number_tokens(rank, me.world.at().cp * rank.stage().tokens() / rank.stage().options().B);
    });
    if (story) CHECK(*story != "");
}

TEST_CASE("certificate: rotary positions that are a rank's own make it fail") {
    Layout layout = ring_of_three();
    layout.kind = ModelKind::llama;
    if (const auto story = verdict(layout)) CHECK(*story == "");
    const auto story = verdict(layout, [](Rank& rank, TestRank&) { number_tokens(rank, 0); });
    if (story) CHECK(*story != "");
}

TEST_CASE("certificate: the target at the boundary of two slices taken from the rank's own next token makes it fail") {
    Layout layout = ring_of_three();
    layout.damage_targets = [](std::span<const std::int32_t> inputs, std::span<std::int32_t> targets) {
        targets[inputs.size() / 2 - 1] = inputs[inputs.size() / 2];
    };
    if (const auto story = verdict(layout)) CHECK(*story != "");
}

TEST_CASE("certificate: gradients that are summed over dp alone make it fail") {
    Layout layout = ring_of_three();
    const auto story = verdict(layout, {}, [](TrainingGroups groups) {
        groups.zero = nullptr;   // dp is 1
        return groups;
    });
    if (story) CHECK(*story != "");
}

TEST_CASE("certificate: a loss that is the mean of ranks' own means makes it fail") {
    Layout layout;
    layout.cp = 2, layout.ulysses = 2, layout.heads = 4, layout.seq_len = 48;
    layout.targets = Targets::few;   // all of them on the first rank
    const auto sound = verdict(layout);
    layout.mean_of_local_means = true;
    const auto story = verdict(layout);
    if (sound) CHECK(*sound == "");
    if (story) CHECK(story->find("loss of step 1") != std::string::npos);
}

// Ranks with other numbers of targets: here the second half of each sequence has none, as at the end of validation and
// in questions. Its loss over the world's tokens is not the mean of ranks' own means.
TEST_CASE("validation: the loss over the world's targets is that of one process, a mean of local means is not") {
    auto losses = [](const MeshShape& mesh, bool mean_of_means) -> std::optional<double> {
        double sum = 0;
        const bool ran = on_ranks(mesh, [&](TestRank& me) {
            Layout layout;
            layout.cp = mesh.cp, layout.seq_len = 48;
            TrainingGroups groups = training_groups(me.world);
            if (me.ranks() == 1) groups.zero = groups.stage = groups.all;
            Rank rank(layout, me.world.at(), groups, &me.world);
            Stage& stage = rank.stage();
            const std::vector<int> positions = token_positions(stage.token_ranges());
            auto read = [&](int, const MicroBatch& to) {
                for (std::size_t i = 0; i < to.tokens.size(); i++) {
                    const int position = positions[i % positions.size()];
                    to.tokens[i] = position * position % 97;
                    to.targets[i] = position < 20 ? (position + 1) * (position + 1) % 97 : -1;
                }
            };
            rank.step().forward(read, Purpose::loss);
            std::vector<float> found(static_cast<std::size_t>(stage.tokens()));
            CUDA_CHECK(cudaMemcpyAsync(found.data(), stage.losses(), found.size() * sizeof(float),
                                       cudaMemcpyDeviceToHost, stage.stream()));
            CUDA_CHECK(cudaStreamSynchronize(stage.stream()));
            double own = 0, targets = 0;
            for (std::size_t i = 0; i < found.size(); i++) {
                own += static_cast<double>(found[i]);
                targets += positions[i % positions.size()] < 20;
            }
            const double all_targets = 20.0 * stage.options().B;
            own /= mean_of_means ? std::max(targets, 1.0) * me.ranks() : all_targets;
            const DeviceBuffer<double> total = me.on_device(std::vector<double>{own});
            me.all.all_reduce(total.data(), 1, ReduceOp::sum, me.stream);
            own = total.download(me.stream)[0];
            if (me.rank() == 0) sum = own;
        });
        if (!ran) return std::nullopt;
        return std::stod(from_first_process(text(sum)));
    };
    const auto alone = losses({1, 1, 1, 1}, false), shared = losses({1, 1, 3, 1}, false);
    const auto local_means = losses({1, 1, 3, 1}, true);
    if (!shared || !local_means) return;
    CHECK(std::abs(*shared / *alone - 1) < tolerance.first_loss);
    CHECK(std::abs(*local_means / *alone - 1) > 2 * tolerance.first_loss);
}
