// The certificate of mixtures whose experts have a capacity: layouts agree if the same rows are routed together.
#include "dev/test/certificate/expert_layouts_testing.h"

using namespace certificate;

namespace {

// Gives every rank micro-batches of one sequence.
Layout single_sequences(Layout layout) {
    layout.step_sequences = 8, layout.micro_batches = 8 / layout.dp;
    layout.capacity_factor = 0.75f;
    return layout;
}

}   // namespace

TEST_CASE("certificate: experts with a capacity, where each sequence is routed alone") {
    Layout reference = single_sequences(dealt(1, experts(1, 0, 1)));
    reference.choices = std::make_shared<Choices>();
    Rank one(reference);
    const Result expected = one.train(4);
    CHECK(one.step().result().experts->dropped.value() > 0.1);   // at most 3 of 4 rows have room
    const PipelineKind kind = PipelineKind::one_f_one_b;
    // tp ranks without sequence parallelism have the same rows
    for (Layout layout : {dealt(1, over(experts(1, 0, 1), 2, false)), dealt(1, experts(2, 1, 1)),
                          dealt(2, experts(4, 3, 1, Recompute::block)), dealt(4, experts(4, 0, 1)),
                          dealt(2, in_stages(experts(2, 2, 1), 3, kind))}) {
        layout = single_sequences(layout);
        if (in_bf16) layout.choices = reference.choices;
        certify(layout, expected);
    }
    reference.capacity_factor = 0, reference.choices = nullptr;   // a layout that dropped nothing would be seen
    CHECK(difference(Rank(reference).train(4), expected, ParamTable(model(reference))) != "");
}

TEST_CASE("certificate: ranks with a capacity drop as many tokens as one process") {
    Layout layout = single_sequences(dealt(1, experts(1, 0, 1)));
    layout.choices = std::make_shared<Choices>();
    auto dropped = [](Rank& rank) {
        rank.gradients(1);
        return rank.step().result().experts->dropped;
    };
    Rank one(layout);
    const double expected = dropped(one).value();
    // of tp ranks with the same rows only the first counts
    for (Layout other :
         {single_sequences(dealt(1, over(experts(1, 0, 1), 2, false))), single_sequences(dealt(2, experts(4, 1, 1))),
          single_sequences(dealt(1, in_stages(experts(2, 0, 1), 3, PipelineKind::zero_bubble)))}) {
        if (in_bf16) other.choices = layout.choices;
        on_layout(other, [&](Rank& rank, TestRank& me) {
            const double found = dropped(rank).value();
            me.require(found == expected, "a share of ", found, " dropped, not ", expected);
        });
    }
    layout.capacity_factor = 0;
    Rank unlimited(layout);
    CHECK(!dropped(unlimited).has_value());
}
