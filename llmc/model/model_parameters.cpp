// Lists the parameters of a model: those of the embedding, of each layer and of the head.
#include <cmath>

#include "llmc/base/check.h"
#include "llmc/model/layer/layer.h"
#include "llmc/model/parameters/param_table.h"

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
