// One table of every parameter of the model. Initialisation, weight decay, ZeRO, tensor and pipeline parallelism,
// checkpoints, import and export all read it; nothing else keeps a list of parameters.
//
// Parameters are grouped into units, the pieces in which they are stored, gathered and reduced: the embedding (wte,
// wpe), each layer, and the head (final layernorm, and the classifier if it is a tensor of its own). A tied classifier
// is wte; in a pipeline of several stages the last one holds a copy of it, in its head unit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/mesh/tensor_spec.h"
#include "llmc/model/config.h"

enum class Init : std::uint8_t { zeros, ones, normal };

// A parameter as the piece of the model that has it declares it (sublayer.h).
struct ParamRow {
    std::string name;    // GPT-2's, within its layer
    TensorSpec tensor;   // stored [out, in], vocabulary padded; and how meshes cut it
    Init init = Init::zeros;
    bool writes_residual = false;    // drawn smaller by the root of the number of such tensors: GPT-2, section 2.3
    bool decays = false;             // weight decay: matrices and embeddings, as llm.c
    bool orthogonal = false;         // Muon makes its updates orthogonal: matrices of layers (Jordan, 2024)
    bool hf_transposed = false;      // Hugging Face stores it [in, out] (GPT-2's Conv1D)
    std::int64_t padding_rows = 0;   // the last ones, always zero

    bool is_matrix() const { return tensor.cols > 1; }   // else a vector of tensor.rows elements
    std::int64_t exported_rows() const { return tensor.rows - padding_rows; }
    std::int64_t exported_elements() const { return exported_rows() * tensor.cols; }
    // Returns the shape in files, without padding rows: [out, in], or as Hugging Face has it.
    std::vector<std::int64_t> file_shape(bool hugging_face) const {
        if (!is_matrix()) return {exported_rows()};
        if (hugging_face && hf_transposed) return {tensor.cols, exported_rows()};
        return {exported_rows(), tensor.cols};
    }
};

// A parameter with its place in the model.
struct ParamInfo : ParamRow {
    int layer = -1;           // -1 outside the layers; `name` is then whole, else it begins with "h.<layer>."
    int unit = 0;             // 0 embedding, 1 + l layer l, 1 + L head
    float deviation = 0.0f;   // standard deviation of Init::normal

    // Returns what stands for the tensor in random keys (random_key of rng.h), of the initial weights and of stochastic
    // rounding. Element i is drawn with counter i. So a draw depends on the seed, the name and i alone: not on the
    // layout, the number of layers, or other tensors.
    std::uint64_t random_tensor() const { return name_hash(name); }
};

// Copies share the parameters until one of them changes.
class ParamTable {
public:
    explicit ParamTable(const ModelConfig& config);

    const ModelConfig& config() const { return content_->config; }
    // Returns all parameters: units in order, each as its pieces declare.
    const std::vector<ParamInfo>& all() const { return content_->params; }
    const ParamInfo& operator[](int index) const { return all()[static_cast<std::size_t>(index)]; }
    int size() const { return static_cast<int>(all().size()); }
    void set_owner(int index, int rank) { own(index).tensor.owner = rank; }
    // Gives a parameter another shape, all rows of which count.
    void set_shape(int index, const TensorSpec& tensor) {
        ParamInfo& param = own(index);
        param.tensor = tensor;
        param.padding_rows = 0;
    }

    // Returns the index of a parameter by its name, within its layer if it has one; `find` returns -1 if there is none.
    int index(std::string_view name, int layer = -1) const;
    int find(std::string_view name, int layer = -1) const;
    int classifier() const { return index(config().tied ? "wte.weight" : "lm_head.weight"); }   // it makes logits

    int units() const { return static_cast<int>(config().layers) + 2; }
    int embedding_unit() const { return 0; }
    int layer_unit(int layer) const { return 1 + layer; }
    int head_unit() const { return units() - 1; }
    bool is_layer(int unit) const { return unit > embedding_unit() && unit < head_unit(); }
    std::string unit_name(int unit) const;   // "embedding", "h.3", "head"

    // Returns the indices of the parameters of a unit. `tied_copy` (for the head of a last stage that is not also the
    // first) puts the copy of wte in front.
    std::vector<int> unit_params(int unit, bool tied_copy = false) const;

    std::int64_t elements() const;   // sum over all parameters, padding rows included

private:
    struct Content {
        ModelConfig config;
        std::vector<ParamInfo> params;
        std::map<std::string, int, std::less<>> by_name;
    };
    static std::shared_ptr<Content> made(const ModelConfig& config);
    ParamInfo& own(int index);   // a parameter that no other table shares

    std::shared_ptr<Content> content_;
};
