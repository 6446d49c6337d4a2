// Tools that the pieces of a stage (embedding, sublayers, head) share, beside parameters and activations.
#pragma once

#include <cstdint>

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/attention/core_attention.h"
#include "llmc/model/choices.h"
#include "llmc/model/layer/tp_region.h"
#include "llmc/model/memory/activations.h"
#include "llmc/model/vocabulary_region.h"

class ExpertRanks;   // llmc/model/layer/expert_ranks.h

// Totals of a step that the backwards of mixtures of experts add to: how many tokens each expert of each layer got, (L,
// E), and the sums of the balance loss and of the router's z-loss; on the host, how many rows this rank's experts got
// in each layer, (L), if experts are dealt out; how many assignments were dropped in each layer, (L), if experts have a
// capacity. Null: nobody reads them, or another tp rank adds the same.
struct ExpertTotals {
    std::int32_t* counts = nullptr;
    double* losses = nullptr;
    std::int32_t* held_rows = nullptr;
    std::int32_t* dropped = nullptr;
};

// Objects and settings. On one device the parts for parallelism do nothing.
struct StageTools {
    Matmul& matmul;
    CoreAttention& attention;
    TpRegion& tp;
    VocabularyRegion& vocabulary;
    ExpertRanks& expert_ranks;
    const RankSizes& sizes;   // sizes of the current micro-batches
    const Workspace& workspace;
    const StageChoices& choices;
    cudaStream_t stream;
    ExpertTotals expert_totals = {};
    const float* router_bias = nullptr;   // (L, E): router_bias.h
    const int* window_keys = nullptr;     // (positions): generation's first keys in layers that slide; null: none does
};
