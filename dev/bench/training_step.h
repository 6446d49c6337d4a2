// A model that trains on random tokens, for benchmarks of the whole step.
#pragma once

#include "llmc/run/step/step.h"

class TrainingStep {
public:
    TrainingStep(const std::string& model, const StageOptions& options, Arena& arena, cudaStream_t stream,
                 const OptimizerOptions& optimizer = {});

    const ModelConfig& config() const { return stage_.config(); }
    void gradients(int micro_batches = 1);   // of so many alike, and their norm
    void update();

private:
    Stage stage_;
    Step step_;
    std::vector<int> tokens_, targets_;
    int number_ = 0;
};
