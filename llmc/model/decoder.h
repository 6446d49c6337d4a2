// Generates text: reads tokens, keeps their keys and values, and returns the logits of the next token.
//
// It serves one sequence on one device, with the layers of training (layer.h). A token costs a pass over its own row:
// each weight is read once (matrix times vector), and each layer attends over the keys and values kept so far. So the
// logits are those of a pass over all tokens, up to the order in which sums are added.
#pragma once

#include <span>
#include <vector>

#include "llmc/model/attention/kv_cache.h"
#include "llmc/model/embedding.h"
#include "llmc/model/head.h"
#include "llmc/model/layer/expert_ranks.h"
#include "llmc/model/layer/layer.h"
#include "llmc/model/layer/router_bias.h"

class Decoder {
public:
    // The caller loads the parameters (weights.h). Throws Error(no_device) if the device lacks room.
    Decoder(const ModelConfig& config, Arena& arena, cudaStream_t stream);
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    const ModelConfig& config() const { return storage_.table().config(); }
    const ModelState<floatX>& parameters() const { return parameters_; }
    RouterBias& router_bias() { return router_bias_; }

    // Return the tokens read so far, and the most there may be: the model's positions.
    int position() const { return position_; }
    int positions() const { return static_cast<int>(config().max_seq_len); }
    void forget() { position_ = 0; }

    // Reads at least one token; returns the logits of the token after the last, one for each id of the vocabulary.
    // Waits for the device.
    std::vector<float> read(std::span<const std::int32_t> tokens);

private:
    void read_rows(std::span<const std::int32_t> tokens);

    cudaStream_t stream_;
    ParamStorage storage_;
    ModelState<floatX> parameters_;
    Matmul matmul_;
    RankSizes sizes_;   // sizes of the rows read at once
    Workspace workspace_;
    ActivationPool activations_;   // memory of one layer, which all layers use in turn
    // one device's
    CoreAttention attention_;
    TpRegion tp_;
    VocabularyRegion vocabulary_;
    ExpertRanks expert_ranks_;
    RouterBias router_bias_;
    const StageChoices choices_{.gelu_fusion = 0};
    StageTools tools_;
    Embedding embedding_;
    std::vector<Layer> layers_;
    Head head_;
    std::vector<KvCache> caches_;   // one a layer
    DeviceBuffer<std::int32_t> tokens_, window_keys_;
    DeviceBuffer<floatX> normed_, logits_;   // output of the head's norm; logits of the last row
    int position_ = 0;
};
