#include "llmc/model/parameters/param_table.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/check.h"
#include "llmc/model/layer/layer.h"

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

std::shared_ptr<ParamTable::Content> ParamTable::made(const ModelConfig& config) {
    check_model_config(config);
    auto content = std::make_shared<Content>(Content{config, {}, {}});
    auto add = [&](int unit, int layer, const std::vector<ParamRow>& rows) {
        for (const ParamRow& row : rows) {
            ParamInfo& info = content->params.emplace_back(ParamInfo{row, layer, unit});
            if (layer >= 0) info.name = text("h.", layer, ".", row.name);
            if (row.init == Init::normal) {
                info.deviation = weight_deviation;
                if (row.writes_residual) info.deviation /= std::sqrt(2.0f * static_cast<float>(config.layers));
            }
            content->by_name[info.name] = static_cast<int>(content->params.size()) - 1;
        }
    };
    const int layers = static_cast<int>(config.layers);
    add(0, -1, embedding_parameters(config));
    for (int layer = 0; layer < layers; layer++) add(1 + layer, layer, Layer::parameters(config));
    add(1 + layers, -1, head_parameters(config));
    return content;
}

ParamTable::ParamTable(const ModelConfig& config) : content_(made(config)) {}

ParamInfo& ParamTable::own(int index) {
    if (content_.use_count() > 1) content_ = std::make_shared<Content>(*content_);
    return content_->params[static_cast<std::size_t>(index)];
}

int ParamTable::find(std::string_view name, int layer) const {
    const auto& by_name = content_->by_name;
    const auto found = layer < 0 ? by_name.find(name) : by_name.find(text("h.", layer, ".", name));
    return found == by_name.end() ? -1 : found->second;
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
        ENSURE(unit == head_unit() && config().tied, "only the head holds a copy of an embedding that is tied");
        indices.push_back(index("wte.weight"));
    }
    const auto [begin, end] = std::ranges::equal_range(all(), unit, {}, &ParamInfo::unit);
    for (auto param = begin; param != end; ++param) indices.push_back(static_cast<int>(param - all().begin()));
    return indices;
}

std::int64_t ParamTable::elements() const {
    std::int64_t sum = 0;
    for (const ParamInfo& param : all()) sum += param.tensor.elements();
    return sum;
}

std::int64_t parameter_count(const ModelConfig& config) { return ParamTable(config).elements(); }
