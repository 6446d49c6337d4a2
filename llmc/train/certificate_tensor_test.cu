// The certificate over tensor-parallel ranks, with and without sequence parallelism, beside data parallelism and ZeRO.
#include "llmc/train/certificate_test.h"

using namespace certificate;

namespace {

void certify(const Layout& layout, const Result& expected) {
    const ParamTable table(model(layout.tied, layout.heads));
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(static_cast<int>(expected.losses.size()));
        require_same_everywhere(found, me);
        require_equal_copies(rank, me);
        const std::string story = difference(found, expected, table);
        me.require(story.empty(), story);
    });
}

Layout tensor_parallel(int tp, bool sequence_parallel, int dp, int zero, int micro_batches,
                       Recompute recompute = Recompute::gelu) {
    Layout layout{dp, zero, micro_batches};
    layout.recompute = recompute;
    layout.tp = tp;
    layout.sequence_parallel = sequence_parallel;
    layout.heads = tp == 3 ? 3 : 12;
    return layout;
}

}   // namespace

TEST_CASE("certificate: a sample of tp ranks x sequence parallelism x ZeRO x recompute") {
    const Result three_heads = train_alone(1, 4), twelve_heads = train_alone(1, 4, true, true, 12);
    for (const Layout& layout :
         {tensor_parallel(2, true, 1, 0, 1), tensor_parallel(2, false, 2, 1, 4, Recompute::block),
          tensor_parallel(3, true, 2, 3, 2, Recompute::gelu_norm), tensor_parallel(3, false, 1, 0, 2, Recompute::none),
          tensor_parallel(2, true, 3, 2, 2, Recompute::block), tensor_parallel(4, true, 2, 1, 1, Recompute::none),
          tensor_parallel(6, true, 1, 0, 1, Recompute::gelu_norm), tensor_parallel(4, false, 1, 0, 1)}) {
        certify(layout, layout.heads == 3 ? three_heads : twelve_heads);
    }
}
