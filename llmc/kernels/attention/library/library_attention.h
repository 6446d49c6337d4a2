// Computes attention with a library: cuDNN on a GPU (library_attention_cudnn.cpp), oneDNN on a CPU
// (library_attention_onednn.cpp).
//
// attention.h says what is computed and in which layouts; this is its other implementation (`--attention library`).
// Whether it can serve is asked of attention_refusal (attention_kinds.h): a library may be missing, has limits, and
// cuDNN is reported to do some shapes wrong.
//
// Deterministic. One object serves one stream at a time, because it owns a workspace ("workspace/attention" in the
// arena). The library chooses its size: oneDNN needs none; cuDNN's deterministic backward may need 2 B NH Tq Tk bytes,
// up to a sixteenth of the device's memory; plans that need more are refused.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/operation_timer.h"

struct AttentionLimits;   // attention_kinds.h

class LibraryAttention {
public:
    static const AttentionLimits& limits();

    // Returns why the library cannot serve this element type and shape, which are within its limits, on this machine;
    // empty if it can. `G`: element type of the output, and of the gradients if `backward`. Does not throw. Plans that
    // cuDNN had to build for the answer are kept for the calls and for later questions.
    template <class T, class G = T>
    static std::string refusal(const AttentionShape& shape, bool backward = true);

    // Returns the bytes of workspace that calls of this shape share on this machine. Throws Error(no_device) with the
    // refusal if there is one.
    template <class T, class G = T>
    static std::size_t workspace_bytes(const AttentionShape& shape, bool backward = true);

    explicit LibraryAttention(Arena& arena);
    ~LibraryAttention();
    LibraryAttention(const LibraryAttention&) = delete;
    LibraryAttention& operator=(const LibraryAttention&) = delete;

    // Builds the plan and allocates the workspace for calls of this shape and these strides; else the first call does.
    // No call may be under way. Throws as the calls do, and Error(no_device) where the device has no room.
    template <class T, class O>
    void prepare(const AttentionForward<T, O>& arguments);
    template <class T, class G>
    void prepare(const AttentionBackward<T, G>& arguments);

    // Compute attention. Throw Error(no_device) with the refusal if there is one. (T, O) and (T, G): (float, float),
    // (bf16, bf16) or (bf16, float).
    template <class T, class O>
    void forward(const AttentionForward<T, O>& arguments, cudaStream_t stream);
    template <class T, class G>
    void backward(const AttentionBackward<T, G>& arguments, cudaStream_t stream);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Call `library` with the signatures of own_attention_forward and own_attention_backward.
template <class T, class O>
void library_attention_forward(LibraryAttention& library, const AttentionForward<T, O>& arguments,
                               cudaStream_t stream) {
    library.forward(arguments, stream);
    if (OperationTimer::watches(stream)) OperationTimer::note(stream, "library attention forward");
}
template <class T, class G>
void library_attention_backward(LibraryAttention& library, const AttentionBackward<T, G>& arguments,
                                cudaStream_t stream) {
    library.backward(arguments, stream);
    if (OperationTimer::watches(stream)) OperationTimer::note(stream, "library attention backward");
}
