// Values of a field of the model, for tests that go through all fields: a new field is tried in all of them.
#pragma once

#include <string>
#include <vector>

#include "llmc/model/config.h"

// Returns a model on which the field has a meaning: with experts or scaled rotary positions, if the field is theirs.
inline ModelConfig plain_for(const ModelField& field, ModelConfig plain) {
    const std::string name = field.name;
    const bool of_experts = name == "shared-experts" || name == "aux-loss" || name.find("expert-") == 0 ||
                            name.find("experts-") == 0 || name.find("router") == 0;
    if (of_experts) plain.experts = 4;
    if (name.starts_with("rope-")) plain.positions = PositionKind::rotary;
    if (!field.of_scalings.empty() && name != "rope-scaling") {
        plain.rope_scaling = field.of_scalings.front(), plain.rope_factor = 8;
    }
    if (name == "layer-pattern" || name == "rope-window-theta") plain.window = 4;
    return plain;
}

// Returns all values that have names, or two numbers that a model like `plain` may have.
inline std::vector<double> values_to_try(const ModelField& field, const ModelConfig& plain) {
    const std::string name = field.name;
    if (field.letters != nullptr) {
        const std::string one(1, field.letters[0]), other(1, field.letters[1]);
        return {pattern_number(one + other), pattern_number(other + one)};
    }
    if (name == "rope-window-theta" || name == "rope-attention-factor") return {0, 2};
    if (!field.is_number()) {
        std::vector<double> values;
        for (std::size_t i = 0; i < field.values.size(); i++) values.push_back(static_cast<double>(i));
        return values;
    }
    if (name == "norm-eps") return {1e-5, 1e-6};
    if (name == "kv-heads") return {1, 2};
    if (name == "window") return {4, 6};
    if (name == "experts") return {3, 4};
    if (name == "experts-per-token") return {1, 3};
    if (name == "shared-experts") return {1, 2};
    if (name == "aux-loss" || name == "router-z-loss") return {1e-3, 0.5};
    return {field.get(plain), 2 * field.get(plain)};
}
