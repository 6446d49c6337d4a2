// Gradients of a rank's parameters. For each tensor they say whether backward next overwrites or adds.
//
// The first part of a tensor's gradient overwrites: the first of a step, or, if ZeRO shards gradients, of a
// micro-batch, because each micro-batch is then reduced to shards and added there (llmc/parallel/zero.h). Chunks of a
// pipeline are not at the same micro-batch, and two of them write a tied embedding: so each tensor has a flag of its
// own.
#pragma once

#include <vector>

#include "llmc/model/parameters/param_storage.h"
#include "llmc/model/precision.h"

// Address of a gradient that a kernel writes, and whether it adds to what is there.
struct GradientTarget {
    TypedPointer data;
    bool accumulate = false;
};

class Gradients {
public:
    Gradients() = default;   // none
    // Zeroes all elements, padding too, which nothing writes. `type`: fp32, or bf16 to save memory, never narrower than
    // the parameters.
    Gradients(Arena& arena, DType type, const ParamStorage& storage, cudaStream_t stream);

    DType type() const { return kept_.type(); }
    std::int64_t element_bytes() const { return static_cast<std::int64_t>(size_of(type())); }
    const StateBuffers& kept() const { return kept_; }             // this rank's part
    const StateBuffers& unsharded() const { return unsharded_; }   // backward writes it: the same, or whole units

    // Returns where a tensor's next part goes. After next() further parts are added.
    GradientTarget next(int param);

    void begin_step() { begun_.assign(begun_.size(), false); }
    // Tells that the gradients of a unit are complete for a micro-batch. If ZeRO shards gradients, the next part
    // overwrites.
    void unit_ready(int slot);

private:
    StateBuffers kept_, unsharded_;
    std::vector<bool> begun_;   // per tensor of the storage
};
