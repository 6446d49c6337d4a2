// Chooses the attention that runs, own or the library's, as --attention asks.
//
// `auto_` is the library if it can serve, else our own, until take() is called: on a GPU the fastest is not known
// before it is measured (attention_of_run.h). A kind that is asked for by name and cannot serve throws Error(no_device)
// with its reason.
//
// Outputs and gradients may be fp32 where T is bf16, so that blocks of a sequence are merged without rounding.
// AttentionUse says whether they are.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stand_in.h"
#include "llmc/kernels/attention/attention_kinds.h"
#include "llmc/kernels/attention/library/library_attention.h"

// Calls that a choice must serve.
struct AttentionUse {
    bool fp32_results = false;   // outputs and gradients are fp32
    bool backward = true;        // false: no memory for backward
    // Shapes of other calls, which the same memory must suffice for: those of --seq-len-schedule.
    std::vector<AttentionShape> other_shapes = {};
};

// Returns the size, in floats, of a workspace that suffices for sm90_attention_backward of `shape` and of the others.
inline std::size_t sm90_attention_workspace(const AttentionShape& shape, const AttentionUse& use) {
    std::size_t most = sm90_attention_workspace(shape);
    for (const AttentionShape& other : use.other_shapes) most = std::max(most, sm90_attention_workspace(other));
    return most;
}

template <class T>
class AttentionChoice {
public:
    AttentionChoice(AttentionKind kind, const AttentionShape& shape, Arena& arena, AttentionUse use = {})
        : arena_(arena), use_(std::move(use)) {
        if (kind != AttentionKind::auto_) {
            take(kind, shape);
        } else {
            if (refusal(AttentionKind::library, shape).empty()) take(AttentionKind::library, shape);
            open_ = stand_in() == nullptr;   // which runs models of a GPU's instructions: the library is faster
        }
    }

    AttentionKind chosen() const { return library_ ? AttentionKind::library : own_; }

    // Returns why attention of a kind cannot serve calls of `shape` and of the other shapes; empty if it can.
    std::string refusal(AttentionKind kind, const AttentionShape& shape) const {
        std::string why = refusal_of(kind, shape);
        for (std::size_t i = 0; why.empty() && i < use_.other_shapes.size(); i++)
            why = refusal_of(kind, use_.other_shapes[i]);
        return why;
    }
    const std::vector<AttentionShape>& other_shapes() const { return use_.other_shapes; }

    // True if speed must still decide: `auto_` before take().
    bool open() const { return open_; }
    // Lists the kinds that can serve.
    std::vector<AttentionKind> candidates(const AttentionShape& shape) const {
        std::vector<AttentionKind> result;
        for (const AttentionKind kind : {AttentionKind::own, AttentionKind::library, AttentionKind::own_sm90}) {
            if (refusal(kind, shape).empty()) result.push_back(kind);
        }
        return result;
    }

    // Switches to `kind`. No work of the previous kind may still be in flight. Throws Error(no_device) if it cannot
    // serve.
    void take(AttentionKind kind, const AttentionShape& shape) {
        ENSURE(kind != AttentionKind::auto_, "a kind of attention is taken by name");
        open_ = false;
        if (kind == chosen()) return;
        if (const std::string why = refusal(kind, shape); !why.empty()) {
            throw Error(ErrorKind::no_device, text("no ", name_of(kind), " attention: ", why),
                        "Use --attention own, or auto to take another only where it can serve.");
        }
        workspace_ = {};
        library_.reset();
        if (kind == AttentionKind::own_sm90 && use_.backward) {
            workspace_ = arena_.allocate<float>("workspace/attention", sm90_attention_workspace(shape, use_));
        }
        if (kind == AttentionKind::library) {
            library_ = std::make_unique<LibraryAttention>(arena_);
        } else {
            own_ = kind;
        }
    }

    // Allocates the device memory of such calls now, not at the first of them. Throws Error(no_device) if there is no
    // room.
    template <class O, class G>
    void prepare(const AttentionForward<T, O>& forward, const AttentionBackward<T, G>& backward) const {
        if (!library_) return;
        library_->prepare(forward);
        library_->prepare(backward);
    }

    template <class O>
    void forward(const AttentionForward<T, O>& arguments, cudaStream_t stream) const {
        if (library_) return library_attention_forward(*library_, arguments, stream);
        if constexpr (std::is_same_v<T, bf16>) {
            if (own_ == AttentionKind::own_sm90) return sm90_attention_forward(arguments, stream);
        }
        own_attention_forward(arguments, stream);
    }
    template <class G>
    void backward(const AttentionBackward<T, G>& arguments, cudaStream_t stream) const {
        if (library_) return library_attention_backward(*library_, arguments, stream);
        if constexpr (std::is_same_v<T, bf16>) {
            if (own_ == AttentionKind::own_sm90)
                return sm90_attention_backward(arguments, {workspace_.data(), workspace_.size()}, stream);
        }
        own_attention_backward(arguments, stream);
    }

private:
    std::string refusal_of(AttentionKind kind, const AttentionShape& shape) const {
        return use_.fp32_results ? attention_refusal<T, float>(kind, shape) : attention_refusal<T, T>(kind, shape);
    }

    Arena& arena_;
    std::unique_ptr<LibraryAttention> library_;   // null: our own
    AttentionKind own_ = AttentionKind::own;      // or own_sm90
    DeviceBuffer<float> workspace_;               // workspace of own_sm90's backward
    AttentionUse use_;
    bool open_ = false;
};
