// The certificate over pipelines: stages, schedules, micro-batches, data-parallel ranks and ZeRO stages.
#include "llmc/train/certificate_test.h"

using namespace certificate;

namespace {

Layout pipeline(const Pipe& pipe, int micro_batches, int layers, bool tied = true, int dp = 1, int zero = 0) {
    Layout layout{dp, zero, micro_batches};
    layout.pipe = pipe;
    layout.layers = layers;
    layout.tied = tied;
    return layout;
}

void certify(const Layout& layout, int steps = 3) {
    const ParamTable table(model(layout.tied, layout.layers));
    const Result expected = train_alone(1, steps, true, layout.tied, layout.layers);
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(steps);
        require_same_everywhere(found, me);
        require_equal_copies(rank, me);
        const std::string story = difference(found, expected, table);
        me.require(story.empty(), story);
    });
}

// The same micro-batches, one after the other in one process, to the bit.
void same_as_alone(const Layout& layout, int steps = 3) {
    Layout alone = layout;
    alone.pipe = {};
    if (delays_weights(layout.pipe.kind)) alone.recompute = Recompute::none;
    const Result expected = Rank(alone).train(steps);
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(steps);
        me.require(found.losses == expected.losses, "other losses than one process has");
        me.require(found.gradients == expected.gradients, "other gradients than one process has");
        me.require(found == expected, "other norms than one process has");
    });
}

constexpr auto naive = PipelineKind::naive, gpipe = PipelineKind::gpipe, one_f_one_b = PipelineKind::one_f_one_b,
               interleaved = PipelineKind::interleaved, zb = PipelineKind::zero_bubble;

}   // namespace

TEST_CASE("certificate: pipelines alone give one process's losses to the bit") {
    same_as_alone(pipeline({2, one_f_one_b}, 4, 3, false));
    same_as_alone(pipeline({3, gpipe}, 2, 4, false));
    same_as_alone(pipeline({2, naive}, 2, 3, false));
    same_as_alone(pipeline({2, interleaved, 2}, 4, 5, false));
    same_as_alone(pipeline({3, zb}, 4, 4, false));
    same_as_alone(pipeline({2, one_f_one_b}, 1, 3, true));
}

TEST_CASE("certificate: pipelines with data parallelism and ZeRO") {
    certify(pipeline({2, one_f_one_b}, 4, 3, true, 2, 0));
    certify(pipeline({2, gpipe}, 2, 3, true, 2, 1));
    certify(pipeline({2, one_f_one_b}, 2, 3, true, 2, 2));
    certify(pipeline({2, interleaved, 2}, 2, 5, true, 2, 3));
    certify(pipeline({4, one_f_one_b}, 4, 5, true));
}
