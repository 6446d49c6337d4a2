#include "llmc/model/param_table.h"

#include <cmath>
#include <string_view>

#include "llmc/base/check.h"

namespace {

// A row of the table before it is given a layer and sizes. Sizes are in units of C unless they name a dimension.
enum class Extent : std::uint8_t { one, c, c3, c4, vocabulary, positions };

struct Row {
    Param kind;
    const char* name;   // within its layer
    Extent rows, cols;
    TensorCut cut;
    Init init;
    bool residual;        // writes into the residual stream: initialised smaller, GPT-2 section 2.3
    bool hf_transposed;   // Hugging Face keeps GPT-2's Conv1D orientation [in, out]
};

constexpr Row embedding_rows[] = {
    {Param::wte, "wte.weight", Extent::vocabulary, Extent::c, TensorCut::vocabulary, Init::normal, false, false},
    {Param::wpe, "wpe.weight", Extent::positions, Extent::c, TensorCut::none, Init::normal, false, false},
};

constexpr Row layer_rows[] = {
    {Param::ln1w, "ln_1.weight", Extent::c, Extent::one, TensorCut::none, Init::ones, false, false},
    {Param::ln1b, "ln_1.bias", Extent::c, Extent::one, TensorCut::none, Init::zeros, false, false},
    {Param::qkvw, "attn.c_attn.weight", Extent::c3, Extent::c, TensorCut::rows, Init::normal, false, true},
    {Param::qkvb, "attn.c_attn.bias", Extent::c3, Extent::one, TensorCut::rows, Init::zeros, false, false},
    {Param::attprojw, "attn.c_proj.weight", Extent::c, Extent::c, TensorCut::columns, Init::normal, true, true},
    {Param::attprojb, "attn.c_proj.bias", Extent::c, Extent::one, TensorCut::none, Init::zeros, false, false},
    {Param::ln2w, "ln_2.weight", Extent::c, Extent::one, TensorCut::none, Init::ones, false, false},
    {Param::ln2b, "ln_2.bias", Extent::c, Extent::one, TensorCut::none, Init::zeros, false, false},
    {Param::fcw, "mlp.c_fc.weight", Extent::c4, Extent::c, TensorCut::rows, Init::normal, false, true},
    {Param::fcb, "mlp.c_fc.bias", Extent::c4, Extent::one, TensorCut::rows, Init::zeros, false, false},
    {Param::fcprojw, "mlp.c_proj.weight", Extent::c, Extent::c4, TensorCut::columns, Init::normal, true, true},
    {Param::fcprojb, "mlp.c_proj.bias", Extent::c, Extent::one, TensorCut::none, Init::zeros, false, false},
};

constexpr Row head_rows[] = {
    {Param::lnfw, "ln_f.weight", Extent::c, Extent::one, TensorCut::none, Init::ones, false, false},
    {Param::lnfb, "ln_f.bias", Extent::c, Extent::one, TensorCut::none, Init::zeros, false, false},
};

constexpr Row untied_classifier = {
    Param::lmhead, "lm_head.weight", Extent::vocabulary, Extent::c, TensorCut::vocabulary, Init::normal, false, false};

constexpr float weight_deviation = 0.02f;

std::int64_t size_of_extent(Extent extent, const ModelConfig& config) {
    switch (extent) {
        case Extent::one: return 1;
        case Extent::c: return config.channels;
        case Extent::c3: return 3 * config.channels;
        case Extent::c4: return 4 * config.channels;
        case Extent::vocabulary: return config.padded_vocab_size;
        case Extent::positions: return config.max_seq_len;
    }
    return 0;
}

ParamInfo make_info(const Row& row, int layer, int unit, const ModelConfig& config) {
    ParamInfo info{};
    info.kind = row.kind;
    info.layer = layer;
    info.unit = unit;
    info.name = layer < 0 ? row.name : text("h.", layer, ".", row.name);
    info.tensor = {size_of_extent(row.rows, config), size_of_extent(row.cols, config), row.cut};
    if (row.rows == Extent::c3) info.tensor.blocks = {config.channels, config.channels, config.channels};   // q, k, v
    // Norms work inside the residual region; what else is not cut sees all rows (cut_points.h).
    if (std::string_view(row.name).starts_with("ln_")) info.tensor.partial = {Axis::tp};
    info.tensor.tied = row.kind == Param::wte && config.tied;
    info.is_matrix = row.cols != Extent::one;
    info.exported_rows = row.rows == Extent::vocabulary ? config.vocab_size : info.tensor.rows;
    info.hf_transposed = row.hf_transposed;
    info.decays = info.is_matrix;
    info.init = row.init;
    if (row.init == Init::normal) {
        info.deviation = weight_deviation;
        if (row.residual) info.deviation /= std::sqrt(2.0f * static_cast<float>(config.layers));
    }
    return info;
}

}   // namespace

ParamTable::ParamTable(const ModelConfig& config) : config_(config) {
    check_model_config(config);
    const int layers = static_cast<int>(config.layers);
    for (const Row& row : embedding_rows) params_.push_back(make_info(row, -1, embedding_unit(), config));
    for (int layer = 0; layer < layers; layer++) {
        for (const Row& row : layer_rows) params_.push_back(make_info(row, layer, layer_unit(layer), config));
    }
    for (const Row& row : head_rows) params_.push_back(make_info(row, -1, head_unit(), config));
    if (!config.tied) params_.push_back(make_info(untied_classifier, -1, head_unit(), config));
}

int ParamTable::index(Param kind, int layer) const {
    const int in_embedding = static_cast<int>(std::size(embedding_rows));
    const int in_layer = static_cast<int>(std::size(layer_rows));
    const int layers = static_cast<int>(config_.layers);
    const int k = static_cast<int>(kind);
    int result = k;   // kinds are numbered in table order, so only whole layers lie between
    if (k >= in_embedding + in_layer) {
        result = k + (layers - 1) * in_layer;
    } else if (k >= in_embedding) {
        ENSURE(layer >= 0 && layer < layers, "layer ", layer, " of ", layers);
        result = k + layer * in_layer;
    }
    ENSURE(result < size() && (*this)[result].kind == kind, "kind ", k, " is not in the table where Param has it");
    return result;
}

int ParamTable::find(const std::string& name) const {
    const std::string prefix = "transformer.";
    const std::string plain = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    for (int i = 0; i < size(); i++) {
        if ((*this)[i].name == plain) return i;
    }
    return -1;
}

std::string ParamTable::unit_name(int unit) const {
    if (unit == embedding_unit()) return "embedding";
    if (unit == head_unit()) return "head";
    return text("h.", unit - 1);
}

std::vector<int> ParamTable::unit_params(int unit, bool tied_copy) const {
    ENSURE(unit >= 0 && unit < units(), "unit ", unit, " of ", units());
    std::vector<int> indices;
    if (tied_copy) {
        ENSURE(unit == head_unit() && config_.tied, "only the head holds a copy of an embedding that is tied");
        indices.push_back(index(Param::wte));
    }
    for (int i = 0; i < size(); i++) {
        if ((*this)[i].unit == unit) indices.push_back(i);
    }
    return indices;
}

std::int64_t ParamTable::elements() const {
    std::int64_t sum = 0;
    for (const ParamInfo& param : params_) sum += param.tensor.elements();
    return sum;
}

std::int64_t parameter_count(const ModelConfig& config) { return ParamTable(config).elements(); }
