// Which attention runs, own or the library's, as --attention asks.
//
// `auto_` is the library wherever it can serve, else our own: on a CPU it is the faster one; on a GPU that stays so
// until our own is measured to be faster. Asked for by name, a library that cannot serve is Error(no_device) with its
// reason.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "llmc/base/arena.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/library_attention.h"

template <class T>
class AttentionChoice {
public:
    AttentionChoice(AttentionKind kind, const AttentionShape& shape, Arena& arena) {
        if (kind == AttentionKind::own) return;
        const std::string refusal = LibraryAttention::refusal<T>(shape);
        if (refusal.empty()) {
            library_ = std::make_unique<LibraryAttention>(arena);
        } else if (kind == AttentionKind::library) {
            throw Error(ErrorKind::no_device, text("no library attention: ", refusal),
                        "Use --attention own, or auto to take the library only where it can serve.");
        }
    }

    AttentionKind chosen() const { return library_ ? AttentionKind::library : AttentionKind::own; }

    void forward(const AttentionForward<T>& arguments, cudaStream_t stream) const {
        if (library_) {
            library_attention_forward(*library_, arguments, stream);
        } else {
            own_attention_forward(arguments, stream);
        }
    }
    void backward(const AttentionBackward<T>& arguments, cudaStream_t stream) const {
        if (library_) {
            library_attention_backward(*library_, arguments, stream);
        } else {
            own_attention_backward(arguments, stream);
        }
    }

private:
    std::unique_ptr<LibraryAttention> library_;   // null: our own
};
