#include "llmc/model/parameters/param_table.h"

#include <cmath>

#include "llmc/base/check.h"
#include "llmc/model/layer.h"

namespace {

constexpr float weight_deviation = 0.02f;

ParamRow vocabulary_matrix(const char* name, const ModelConfig& c, bool tied) {
    return {.name = name,
            .tensor = {.rows = c.padded_vocab_size, .cols = c.channels, .cut = TensorCut::vocabulary, .tied = tied},
            .init = Init::normal,
            .decays = true,
            .padding_rows = c.padded_vocab_size - c.vocab_size};
}

std::vector<ParamRow> embedding_parameters(const ModelConfig& c) {
    std::vector<ParamRow> rows{vocabulary_matrix("wte.weight", c, c.tied)};
    if (c.positions == PositionKind::learned) {
        rows.push_back({.name = "wpe.weight",
                        .tensor = {.rows = c.max_seq_len, .cols = c.channels},
                        .init = Init::normal,
                        .decays = true});
    }
    return rows;
}

std::vector<ParamRow> head_parameters(const ModelConfig& c) {
    std::vector<ParamRow> rows = Norm::parameters("ln_f", c);
    if (!c.tied) rows.push_back(vocabulary_matrix("lm_head.weight", c, false));
    return rows;
}

}   // namespace

ParamTable::ParamTable(const ModelConfig& config) : config_(config) {
    check_model_config(config);
    auto add = [&](int unit, int layer, const std::vector<ParamRow>& rows) {
        for (const ParamRow& row : rows) {
            ParamInfo& info = params_.emplace_back(ParamInfo{row, layer, unit});
            if (layer >= 0) info.name = text("h.", layer, ".", row.name);
            if (row.init == Init::normal) {
                info.deviation = weight_deviation;
                if (row.writes_residual) info.deviation /= std::sqrt(2.0f * static_cast<float>(config.layers));
            }
            by_name_[info.name] = size() - 1;
        }
    };
    add(embedding_unit(), -1, embedding_parameters(config));
    for (int layer = 0; layer < static_cast<int>(config.layers); layer++) {
        add(layer_unit(layer), layer, Layer::parameters(config));
    }
    add(head_unit(), -1, head_parameters(config));
}

int ParamTable::find(std::string_view name, int layer) const {
    const auto found = layer < 0 ? by_name_.find(name) : by_name_.find(text("h.", layer, ".", name));
    return found == by_name_.end() ? -1 : found->second;
}

int ParamTable::index(std::string_view name, int layer) const {
    const int found = find(name, layer);
    ENSURE(found >= 0, "there is no parameter ", name, " of layer ", layer);
    return found;
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
        indices.push_back(index("wte.weight"));
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
