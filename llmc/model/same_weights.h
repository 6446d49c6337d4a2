// Compares models by their weights.
#pragma once

#include <algorithm>

#include "llmc/model/config.h"

// True if the weights of one model are weights of the other: all fields are equal but those of training alone and, of
// rotary models, those with which training may go on (ModelField::may_change).
inline bool have_same_weights(ModelConfig a, ModelConfig b) {
    for (ModelConfig* const model : {&a, &b}) {   // a window that cuts nothing off is none
        const bool is_none = model->rope_window_theta == 0 && !model->window_cuts(model->max_seq_len);
        if (is_none) model->window = 0, model->layer_pattern.clear();
    }
    const bool are_rotary = a.positions == PositionKind::rotary && b.positions == PositionKind::rotary;
    return a.padded_vocab_size == b.padded_vocab_size &&
           std::ranges::all_of(model_fields(), [&](const ModelField& field) {
               return field.of_training || (are_rotary && field.may_change) || field.same(a, b);
           });
}
