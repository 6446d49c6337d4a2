// One table of every parameter of the model. Initialisation, weight decay, ZeRO, tensor and pipeline parallelism,
// checkpoints, import and export all read it; nothing else keeps a list of parameters.
//
// Parameters are grouped into units, the pieces in which they are stored, gathered and reduced: the embedding (wte,
// wpe), each layer, and the head (final layernorm, and the classifier where it is a tensor of its own). A tied
// classifier is wte; in a pipeline of several stages the last one holds a copy of it, in its head unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/mesh/tensor_spec.h"
#include "llmc/model/config.h"

// Kinds of parameters, in the order in which llm.c's model files store them.
enum class Param : std::uint8_t {
    wte,        // (Vp, C)  token embedding, and the classifier where that is tied to it
    wpe,        // (maxT, C) position embedding
    ln1w,       // (C)      layernorm before attention
    ln1b,       // (C)
    qkvw,       // (3C, C)  queries, keys, values
    qkvb,       // (3C)
    attprojw,   // (C, C)   attention's projection back into the residual stream
    attprojb,   // (C)
    ln2w,       // (C)      layernorm before the MLP
    ln2b,       // (C)
    fcw,        // (4C, C)  MLP up
    fcb,        // (4C)
    fcprojw,    // (C, 4C)  MLP down
    fcprojb,    // (C)
    lnfw,       // (C)      layernorm before the classifier
    lnfb,       // (C)
    lmhead,     // (Vp, C)  classifier, where it is not wte; llm.c's files have none
};
constexpr int llmc_param_kinds = 16;   // those before lmhead

enum class Init : std::uint8_t { zeros, ones, normal };

struct ParamInfo {
    Param kind;
    int layer;                    // -1 outside the layers
    int unit;                     // 0 embedding, 1 + l layer l, 1 + L head
    std::string name;             // GPT-2's and Hugging Face's, without "transformer."
    TensorSpec tensor;            // stored [out, in], vocabulary padded; and how meshes cut it
    bool is_matrix;               // else a vector of tensor.rows elements
    std::int64_t exported_rows;   // rows before padding: V for wte and lmhead, else tensor.rows
    bool hf_transposed;           // Hugging Face stores it [in, out] (its Conv1D)
    bool decays;                  // weight decay: matrices and embeddings, as llm.c
    Init init;
    float deviation;   // of the normal distribution; padding rows are zero whatever `init` says

    std::int64_t exported_elements() const { return exported_rows * tensor.cols; }
    // In files, without padding rows: [out, in], or as Hugging Face has it.
    std::vector<std::int64_t> file_shape(bool hugging_face) const {
        if (!is_matrix) return {exported_rows};
        if (hugging_face && hf_transposed) return {tensor.cols, exported_rows};
        return {exported_rows, tensor.cols};
    }
    // Stands for the tensor in random keys (random_key of rng.h), of the initial weights and of stochastic rounding.
    // Element i is drawn with counter i. So a draw depends on the seed, the name and i alone: not on the layout, the
    // number of layers, or what other tensors there are.
    std::uint64_t random_tensor() const { return name_hash(name); }
};

class ParamTable {
public:
    explicit ParamTable(const ModelConfig& config);

    const ModelConfig& config() const { return config_; }
    const std::vector<ParamInfo>& all() const { return params_; }   // units in order, each in the order of Param
    const ParamInfo& operator[](int index) const { return params_[static_cast<std::size_t>(index)]; }
    int size() const { return static_cast<int>(params_.size()); }

    // The tensor that makes logits.
    Param classifier() const { return config_.tied ? Param::wte : Param::lmhead; }

    // Index of a parameter; layer -1 for those outside the layers.
    int index(Param kind, int layer = -1) const;
    // Index by Hugging Face name, with or without "transformer."; -1 when there is none.
    int find(const std::string& name) const;

    int units() const { return static_cast<int>(config_.layers) + 2; }
    int embedding_unit() const { return 0; }
    int layer_unit(int layer) const { return 1 + layer; }
    int head_unit() const { return units() - 1; }
    bool is_layer(int unit) const { return unit > embedding_unit() && unit < head_unit(); }
    std::string unit_name(int unit) const;   // "embedding", "h.3", "head"

    // Indices of the parameters of a unit. `tied_copy` (for the head of a last stage that is not also the first) puts
    // the copy of wte in front.
    std::vector<int> unit_params(int unit, bool tied_copy = false) const;

    std::int64_t elements() const;   // sum over all parameters, padding rows included

private:
    ModelConfig config_;
    std::vector<ParamInfo> params_;
};
