// Layouts of mixtures of experts, for tests of the certificate.
#pragma once

#include "dev/test/certificate/certificate_testing.h"

namespace certificate {

inline Layout experts(int dp, int zero, int micro_batches, Recompute recompute = Recompute::gelu) {
    Layout layout{dp, zero, micro_batches};
    layout.experts = 5, layout.recompute = recompute;
    return layout;
}
inline Layout over(Layout layout, int tp, bool sequence_parallel, int cp = 1, int tp_chunks = 1) {
    layout.tp = tp, layout.sequence_parallel = sequence_parallel, layout.cp = cp, layout.tp_chunks = tp_chunks;
    return layout;
}
inline Layout in_stages(Layout layout, int stages, PipelineKind kind, int chunks = 1) {
    layout.pipe.stages = stages, layout.pipe.kind = kind, layout.pipe.chunks = chunks;
    return layout;
}

inline Result alone(const Layout& like, int micro_batches, int steps) {
    Layout layout = like;
    layout.dp = layout.cp = layout.tp = 1, layout.zero = 0, layout.micro_batches = micro_batches, layout.pipe = {};
    layout.sequence_parallel = false, layout.tp_chunks = 1, layout.recompute = Recompute::gelu, layout.ep = 1;
    return Rank(layout).train(steps);
}

// Sets 8 experts, dealt out to `ep` ranks.
inline Layout dealt(int ep, Layout layout) {
    layout.experts = 8, layout.heads = 4, layout.ep = ep;
    return layout;
}
inline Layout choosing_all(Layout layout) {   // so loads are equal
    layout.experts = layout.experts_per_token = 4;
    return layout;
}

// In fp32 every layout chooses freely. In bf16 rounding changes the choice of a token near a tie, and with it gradients
// by more than roundings do: there what one process chose is replayed.
inline void certify_all(const Layout& like, bool replay, std::initializer_list<Layout> layouts) {
    Layout reference = like;
    reference.choices = std::make_shared<Choices>();   // recorded
    const Result expected = alone(reference, 1, 4);
    if (!replay) MESSAGE("choices are free; the smallest gap of logits is ", reference.choices->smallest_gap);
    for (Layout layout : layouts) {
        if (replay) layout.choices = reference.choices;
        certify(layout, expected);
    }
}
inline Layout with_sigmoid(Layout layout) {
    layout.router = RouterScore::sigmoid;
    return layout;
}
inline constexpr bool in_bf16 = sizeof(floatX) < sizeof(float);

}   // namespace certificate
