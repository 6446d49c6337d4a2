// The attention that a stage's layers use: own or the library's. Which can serve, and which is the fastest.
#pragma once

#include <optional>
#include <string>

#include "llmc/model/layer/layer.h"

class StageAttention {
public:
    // `choice` is what the layers call. `layer`, its activations `a` (whose contents this may overwrite while nothing
    // is in flight) and `tools` must outlive this.
    StageAttention(AttentionChoice<floatX>& choice, const StageTools& tools, const Layer& layer,
                   const LayerActivations& a)
        : choice_(choice), tools_(tools), layer_(layer.attention()), a_(a.attention) {}

    AttentionKind kind() const { return choice_.chosen(); }   // never auto_
    bool is_open() const { return choice_.open(); }           // several can serve, the fastest is not known
    // Returns why the library cannot serve micro-batches of the current shape; empty if it can.
    std::string library_refusal() const { return choice_.refusal(AttentionKind::library, tools_.sizes.attention()); }
    // Switches to `kind`, makes the library's plans and allocates memory for micro-batches of the current shape and of
    // StageOptions::shorter_lengths. Waits for the stream. Throws Error(no_device) if it cannot serve or lacks room;
    // another that serves is used then.
    void use(AttentionKind kind);
    // Measures the kinds that can serve a micro-batch of this model, and returns the fastest; does not switch. If the
    // library failed, for lack of memory for example, `library_failed` says why.
    struct Fastest {
        AttentionKind kind;
        std::string library_failed;
    };
    Fastest fastest() const;
    // Measures a hop of the ring, and the block of attention that is to hide it; none without a ring. Collective over
    // the ring's ranks; waits for the stream.
    std::optional<RingTimes> time_ring() const;

private:
    AttentionChoice<floatX>& choice_;
    const StageTools& tools_;
    const Attention& layer_;
    const AttentionActivations& a_;
};
