// A GPT that writes: it reads tokens, remembers their keys and values, and says what may come next.
//
// One sequence, one device, the layers that training has (layer.h). A token costs a pass of its own row alone: each
// weight is read once (matrix times vector) and each layer attends over the keys and values kept of what was read
// before. So the logits are those of a pass over all tokens, up to the order in which sums are added.
#pragma once

#include <span>
#include <vector>

#include "llmc/model/embedding.h"
#include "llmc/model/head.h"
#include "llmc/model/layer.h"
#include "llmc/model/sublayers/expert_ranks.h"
#include "llmc/model/sublayers/router_bias.h"

class Decoder {
public:
    // Contents of the parameters are the caller's to load (weights.h). Error(no_device) where the device lacks room.
    Decoder(const ModelConfig& config, Arena& arena, cudaStream_t stream);
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    const ModelConfig& config() const { return storage_.table().config(); }
    const ModelState<floatX>& parameters() const { return parameters_; }
    RouterBias& router_bias() { return router_bias_; }

    // Tokens read so far, and the most there may be: the model's positions.
    int position() const { return position_; }
    int positions() const { return static_cast<int>(config().max_seq_len); }
    void forget() { position_ = 0; }

    // Reads tokens, at least one, all of the vocabulary; returns the logits of what follows the last of them, one for
    // each id of the vocabulary. Waits for the device.
    std::vector<float> read(std::span<const std::int32_t> tokens);

private:
    void read_rows(std::span<const std::int32_t> tokens);

    cudaStream_t stream_;
    ParamStorage storage_;
    ModelState<floatX> parameters_;
    Matmul matmul_;
    RankSizes sizes_;   // of the rows that are read at once
    AttentionChoice<floatX> attention_;
    CutPoints one_device_;
    ExpertRanks one_device_of_experts_;
    Workspace workspace_;
    RouterBias router_bias_;
    StageTools tools_;
    ActivationPool activations_;   // of one layer, which all take in turns
    Embedding embedding_;
    std::vector<Layer> layers_;
    Head head_;
    std::vector<DeviceBuffer<floatX>> cache_memory_;
    std::vector<std::vector<floatX*>> caches_;   // of each layer and sublayer: (positions, its elements)
    DeviceBuffer<std::int32_t> tokens_;
    DeviceBuffer<floatX> normed_, logits_;   // what the head's norm has made, logits of the last row
    int position_ = 0;
};
