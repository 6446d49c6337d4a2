#include "llmc/model/parameters/param_table.h"

#include <algorithm>

#include "llmc/base/check.h"

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
