#include "llmc/model/parameters/gradients.h"

Gradients::Gradients(Arena& arena, DType type, const ParamStorage& storage, cudaStream_t stream)
    : kept_(arena, type, "gradients", storage, StateKind::gradients),
      unsharded_(is_sharded(StateKind::gradients, storage.place().zero_stage)
                     ? StateBuffers(arena, type, "unsharded gradients", storage, StateKind::unsharded, zero_layer_sets)
                     : kept_),
      begun_(storage.tensors().size(), false) {
    kept_.zero(stream);
    unsharded_.zero(stream);
}

GradientTarget Gradients::next(int param) {
    const TensorLayout* place = kept_.storage().find(param);
    ENSURE(place != nullptr, "this rank holds no ", kept_.storage().table()[param].name);
    const auto index = static_cast<std::size_t>(place - kept_.storage().tensors().data());
    const bool accumulate = begun_[index];
    begun_[index] = true;
    return {unsharded_.tensor(param), accumulate};
}

void Gradients::unit_ready(int slot) {
    if (!is_sharded(StateKind::gradients, kept_.storage().place().zero_stage)) return;
    for (int tensor : kept_.storage().units()[static_cast<std::size_t>(slot)].tensors) {
        begun_[static_cast<std::size_t>(tensor)] = false;
    }
}
