// Gradients of a rank's parameters. For each tensor they say whether backward next overwrites or adds.
//
// The first part of a tensor's gradient overwrites: the first of a step, or, if ZeRO shards gradients, of a
// micro-batch, because each micro-batch is then reduced to shards and added there (llmc/parallel/zero.h). Chunks of a
// pipeline are not at the same micro-batch, and two of them write a tied embedding: so each tensor has a flag of its
// own.
#pragma once

#include <variant>
#include <vector>

#include "llmc/model/parameters/param_storage.h"
#include "llmc/model/precision.h"

// G: float, or bf16 to save memory.
template <class G>
class Gradients {
public:
    Gradients() = default;   // none
    // Zeroes all elements, padding too, which nothing writes.
    Gradients(Arena& arena, const ParamStorage& storage, cudaStream_t stream)
        : kept_(arena, "gradients", storage, StateKind::gradients),
          unsharded_(is_sharded(StateKind::gradients, storage.place().zero_stage)
                         ? ModelState<G>::rotating(arena, "unsharded gradients", storage, zero_layer_sets)
                         : kept_),
          begun_(storage.tensors().size(), false) {
        kept_.zero(stream);
        unsharded_.zero(stream);
    }

    const ModelState<G>& kept() const { return kept_; }             // this rank's part
    const ModelState<G>& unsharded() const { return unsharded_; }   // backward writes it: the same, or whole units

    // Address of a tensor's next part, and whether it is added to what is there. After next() further parts are added.
    struct Target {
        G* data;
        bool accumulate;
    };
    Target next(int param) {
        const TensorPlace* place = kept_.storage().find(param);
        ENSURE(place != nullptr, "this rank holds no ", kept_.storage().table()[param].name);
        const auto index = static_cast<std::size_t>(place - kept_.storage().tensors().data());
        const bool accumulate = begun_[index];
        begun_[index] = true;
        return {unsharded_.tensor(param), accumulate};
    }

    void begin_step() { begun_.assign(begun_.size(), false); }
    // Tells that the gradients of a unit are complete for a micro-batch. If ZeRO shards gradients, the next part
    // overwrites.
    void unit_ready(int slot) {
        if (!is_sharded(StateKind::gradients, kept_.storage().place().zero_stage)) return;
        for (int tensor : kept_.storage().units()[static_cast<std::size_t>(slot)].tensors) {
            begun_[static_cast<std::size_t>(tensor)] = false;
        }
    }

private:
    ModelState<G> kept_, unsharded_;
    std::vector<bool> begun_;   // per tensor of the storage
};

// Gradients of the type that a run keeps them in.
#if defined(PRECISION_BF16)
using AnyGradients = std::variant<Gradients<float>, Gradients<bf16>>;
#else
using AnyGradients = std::variant<Gradients<float>>;   // never narrower than the parameters
#endif
// Returns the bytes of an element.
inline std::int64_t gradient_bytes(const AnyGradients& gradients) {
    return std::visit([]<class G>(const Gradients<G>&) { return std::int64_t{sizeof(G)}; }, gradients);
}
