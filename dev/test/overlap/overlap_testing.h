// For tests of what hides behind work, judged on the stand-in's virtual clock.
#pragma once

#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/run/step/step.h"

// Returns costs where communication slows nothing down.
inline host::CostModel uncharged(host::CostModel costs) {
    costs.multiprocessors = 0;
    return costs;
}

// Records forward and backward of a step with one micro-batch of made-up tokens, as this rank asks for it.
inline host::Recording recorded_gradients(Stage& model, Step& step) {
    const int vocabulary = static_cast<int>(model.config().vocab_size);
    auto read = [vocabulary](int, const MicroBatch& to) {
        for (std::size_t i = 0; i < to.tokens.size(); i++) {
            to.tokens[i] = static_cast<int>(i) % vocabulary, to.targets[i] = static_cast<int>(i * 5) % vocabulary;
        }
    };
    const float share = 1.0f / static_cast<float>(model.options().B * model.options().T);
    CUDA_CHECK(cudaDeviceSynchronize());
    host::Recording recording = host::record([&] { step.gradients(one_stage_schedule(1), read, share); });
    CUDA_CHECK(cudaDeviceSynchronize());
    return recording;
}
