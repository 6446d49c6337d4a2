// A GPT that writes: it reads tokens, remembers their keys and values, and says what may come next.
//
// One sequence, one device. A token costs a pass of its own row alone: each weight is read once (matrix times vector)
// and each layer attends over the keys and values kept of what was read before. So the logits are those of a pass over
// all tokens, up to the order in which sums are added.
#pragma once

#include <span>
#include <vector>

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/param_storage.h"
#include "llmc/model/precision.h"

class Decoder {
public:
    // Contents of the parameters are the caller's to load (weights.h). Error(no_device) where the device lacks room.
    Decoder(const ModelConfig& config, Arena& arena, cudaStream_t stream);
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    const ModelConfig& config() const { return storage_.table().config(); }
    const ModelState<floatX>& parameters() const { return parameters_; }

    // Tokens read so far, and the most there may be: the model's positions.
    int position() const { return position_; }
    int positions() const { return static_cast<int>(config().max_seq_len); }
    void forget() { position_ = 0; }

    // Reads tokens, at least one, all of the vocabulary; returns the logits of what follows the last of them, one for
    // each id of the vocabulary. Waits for the device.
    std::vector<float> read(std::span<const std::int32_t> tokens);

private:
    void read_rows(std::span<const std::int32_t> tokens);
    void layer(int l, int rows);
    void matmul(floatX* out, const floatX* in, Param weight, Param bias, int l, const MatmulShape& shape);
    void add_and_normalise(int rows, Param weight, Param bias, int l);

    cudaStream_t stream_;
    ParamStorage storage_;
    ModelState<floatX> parameters_;
    Matmul matmul_;
    int C_, NH_, position_ = 0;
    std::vector<DeviceBuffer<floatX>> cache_;   // of each layer (positions, 3, NH, HS): queries, keys, values
    DeviceBuffer<std::int32_t> tokens_;
    // of the rows at hand: the residual stream, what a norm makes of it, what is to be added to it, the MLP's inside
    DeviceBuffer<floatX> residual_, normed_, added_, hidden_, logits_;
};
