// Layouts that the certificate tries, and the model and samples that are trained under each.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dev/test/certificate/replayed_choices_testing.h"
#include "llmc/base/rng.h"
#include "llmc/model/choices.h"
#include "llmc/optim/optimizer_options.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/process/world.h"

namespace certificate {

struct Pipe {
    int stages = 1;
    PipelineKind kind = PipelineKind::one_f_one_b;
    int chunks = 1;
    int warmup = 0;
};

// Which positions have a target: a step's loss is the mean over those of all ranks. Or: all have one, and see no more
// than their documents.
enum class Targets : std::uint8_t {
    all,
    ragged,   // micro-batches and ranks have other numbers of them
    few,      // the second half of a step's sequences has none, nor the second half of each: so some rank may have none
    documents,   // lengths from one token to whole sequences, which begin in every piece of a sequence
    one_document,
};

// The model that is trained: GPT-2, GPT-2 with RMSNorm, Llama's kind (rotary positions, SwiGLU, no biases, and groups
// of heads that share keys and values, with norms of heads; trained with a z-loss), or OLMo2's: Llama's with norms
// after sublayers, and of whole rows of queries and keys; here with biases of queries, keys and values, as in Qwen2.
enum class ModelKind : std::uint8_t { gpt2, rms, llama, olmo2 };

struct Layout {
    int dp = 1;
    int zero = 0;
    int micro_batches = 1;   // per rank and step
    DType grad_dtype = DType::fp32;
    MasterWeights master_weights = MasterWeights::fp32;
    Recompute recompute = Recompute::gelu;
    bool tied = true;
    ModelKind kind = ModelKind::gpt2;
    int kv_heads = 0;          // for llama and olmo2; 0: as many as heads
    bool two_chunks = false;   // whose micro-batches are not in step: all forward, then back chunk by chunk
    int tp = 1;
    bool sequence_parallel = false;
    int heads = 3;   // in the model
    int tp_chunks = 1;
    Pipe pipe = {};
    int layers = 3;
    std::vector<std::vector<PipelineSchedule>> more_schedules = {};   // that there must be room for: Rank::follow
    int cp = 1, ulysses = 1;
    int seq_len = 16;
    Targets targets = Targets::all;
    int window = 0;           // of the layers S of SL; 0: none
    int step_sequences = 0;   // 0: chosen so that 8 ranks x 4 micro-batches can share them
    // for tests of what is wrong: what is done to a rank's targets, (sequences, own tokens)
    std::unique_ptr<ExpertRanks> (*expert_ranks)(World&, const StageOptions&, const ModelConfig&,
                                                 const Arena&) = make_expert_ranks;
    void (*damage_targets)(std::span<const std::int32_t> inputs, std::span<std::int32_t> targets) = nullptr;
    void (*damage_starts)(std::span<std::int32_t> starts,
                          const std::vector<int>& positions) = nullptr;   // `positions` of a sequence
    bool mean_of_local_means = false;   // each rank's loss is a mean over its own targets
    OptimizerKind optimizer = OptimizerKind::adamw;
    DType moments = DType::fp32;
    float lr = 1e-3f;
    int zero_group = 0;
    int experts = 0, experts_per_token = 2;   // in place of the MLP, with both of the router's losses
    int ep = 1;                               // ranks that these are dealt out to
    int ep_chunks = 2;                        // StageOptions::ep_chunks
    float capacity_factor = 0;                // StageOptions::capacity_factor
    MatmulDType matmul_dtype = MatmulDType::stored;
    RouterScore router = RouterScore::softmax;
    std::shared_ptr<Choices> choices = nullptr;   // choices of experts: replayed, or recorded if empty

    MeshShape mesh() const { return {pipe.stages, dp, cp, tp, zero_group, ep}; }
    PipelineShape pipeline() const { return {pipe.kind, pipe.stages, micro_batches, pipe.chunks, pipe.warmup}; }
    int sequences() const { return step_sequences > 0 ? step_sequences : std::max(1536 / seq_len / 4 * 4, 4); }
    bool has_target(int sequence, int position) const {   // counted from the first of the run
        if (targets == Targets::few) return sequence % sequences() < sequences() / 2 && position < seq_len / 2;
        return targets != Targets::ragged || (sequence * 7 + position) % 5 >= sequence % 4;
    }
    bool masks_documents() const { return targets >= Targets::documents; }
    bool begins_document(int sequence, int position) const {
        if (targets != Targets::documents || sequence % 4 == 0) return false;
        if (sequence % 4 == 1) return position < seq_len / 2;   // each of one token
        if (sequence % 4 == 2) return (position * 7 + sequence) % 5 == 0;
        return mix64(static_cast<std::uint64_t>(sequence * seq_len + position)) % 8 == 0;
    }
    bool like_llama() const { return kind >= ModelKind::llama; }
    int targets_of_step(int step) const {   // from 1
        int count = 0;
        for (int i = 0; i < sequences() * seq_len; i++) {
            count += has_target((step - 1) * sequences() + i / seq_len, i % seq_len);
        }
        return count;
    }
    std::string name() const;
};

// The fixed model and batch: three layers, so that they take turns in memory; sizes that few numbers of ranks divide.
ModelConfig model(const Layout& layout);
inline ModelConfig model(bool tied = true) {
    Layout layout;
    layout.tied = tied;
    return model(layout);
}
constexpr int T = 16, sequences = 96;   // sequences per step: divisible by 8 ranks x 4 micro-batches
constexpr std::uint64_t seed = 42;

// The tokens of a sample and one more. Skewed and repetitive, so that there is something to learn.
std::vector<int> sample(int index, int seq_len = T);

}   // namespace certificate
