// Own attention: checks the arguments and hands them to tensor cores (bf16) or to fp32 multiply-adds (fp32).
#include "llmc/kernels/attention/attention.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "llmc/base/check.h"
#include "llmc/kernels/attention/attention_common.cuh"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/attention_kinds.h"
#include "llmc/kernels/launch.cuh"

namespace {

void check_shape(const AttentionShape& shape) {
    ENSURE(shape.HS > 0 && shape.HS <= kLargestHead && shape.HS % 8 == 0, "head size ", shape.HS);
    ENSURE(shape.B > 0 && shape.NH > 0 && shape.Tq > 0 && shape.Tk > 0, "B, NH, Tq, Tk are ", shape.B, ", ", shape.NH,
           ", ", shape.Tq, ", ", shape.Tk);
    ENSURE(shape.group > 0 && shape.NH % shape.group == 0, shape.NH, " heads of queries in groups of ", shape.group);
    ENSURE(shape.B <= 65535 && shape.NH <= 65535, "B, NH are ", shape.B, ", ", shape.NH, ": more than a grid holds");
    ENSURE(shape.Tq <= 1 << 29 && shape.Tk <= 1 << 29, "Tq, Tk are ", shape.Tq, ", ", shape.Tk);   // sums fit an int
    ENSURE(shape.scale > 0, "scale is ", shape.scale);   // so that the largest product has the largest score
}

template <class T>
void check_view(const HeadsView<T>& view, const char* name) {
    ENSURE(view.batch % 8 == 0 && view.token % 8 == 0 && view.head % 8 == 0, "strides of ", name, " are ", view.batch,
           ", ", view.token, ", ", view.head, ", expected multiples of 8");
    // kernels count the elements of a tile of 128 tokens in an int
    ENSURE(view.token > 0 && view.token <= std::numeric_limits<int>::max() / 256, "token stride of ", name, " is ",
           view.token);
    ENSURE(reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0, name, " is not aligned to 16 bytes");
}

// Checks the arguments that forward and backward have in common.
template <class Arguments>
void check_inputs(const Arguments& a) {
    check_shape(a.shape);
    check_view(a.q, "q");
    check_view(a.k, "k");
    check_view(a.v, "v");
    check_view(a.out, "out");
}
template <class T, class O>
void check_arguments(const AttentionForward<T, O>& a) {
    check_inputs(a);
}
template <class T, class G>
void check_arguments(const AttentionBackward<T, G>& a) {
    check_inputs(a);
    check_view(a.dout, "dout");
    check_view(a.dq, "dq");
    check_view(a.dk, "dk");
    check_view(a.dv, "dv");
}

std::atomic<bool>& tensor_cores() {
    static std::atomic<bool> used = true;
    return used;
}

}   // namespace

void use_tensor_cores(bool use) { tensor_cores() = use; }
bool uses_tensor_cores() { return tensor_cores(); }

template <class T, class G>
void launch_attention_delta(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    const AttentionShape& shape = a.shape;
    const std::int64_t rows = std::int64_t{shape.B} * shape.NH * shape.Tq;
    ENSURE(rows < std::int64_t{1} << 31, rows, " rows of all heads are more than one launch can cover");
    const std::int64_t blocks = ceil_div(rows, DELTA_ROWS);
    launch(
        attention_delta<T, G>,
        with_queries(Launch(static_cast<unsigned>(blocks), DELTA_THREADS, 0, stream).writes(a.delta, row_bytes(shape)),
                     shape, a.dout, a.out),
        a);
}

template <class T, class O>
void own_attention_forward(const AttentionForward<T, O>& a, cudaStream_t stream) {
    check_arguments(a);
    if constexpr (std::is_same_v<T, bf16>) {
        if (uses_tensor_cores()) {
            return a.shape.documents.first != nullptr ? launch_attention_forward_mma<O, true>(a, stream)
                                                      : launch_attention_forward_mma<O>(a, stream);
        }
    }
    launch_attention_forward_fma(a, stream);
}

template <class O>
static void check_limits_sm90(const AttentionShape& shape) {
    const std::string why = beyond(limits_of(AttentionKind::own_sm90), shape, false, std::is_same_v<O, float>);
    ENSURE(why.empty(), "attention for sm_90a: ", why);
}

template <class O>
void sm90_attention_forward(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    check_arguments(a);
    check_limits_sm90<O>(a.shape);
    launch_attention_forward_hopper(a, stream);
}

template <class G>
void sm90_attention_backward(const AttentionBackward<bf16, G>& a, std::span<float> workspace, cudaStream_t stream) {
    check_arguments(a);
    check_limits_sm90<G>(a.shape);
    const std::size_t needed = sm90_attention_workspace(a.shape);
    ENSURE(needed <= workspace.size(), "a workspace of ", workspace.size(), " numbers, expected ", needed);
    launch_attention_delta(a, stream);
    launch_attention_backward_hopper(a, workspace.data(), stream);
}

template <class T, class G>
void own_attention_backward(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    check_arguments(a);
    launch_attention_delta(a, stream);
    if constexpr (std::is_same_v<T, bf16>) {
        if (uses_tensor_cores()) {
            return a.shape.documents.first != nullptr ? launch_attention_backward_mma<G, true>(a, stream)
                                                      : launch_attention_backward_mma<G>(a, stream);
        }
    }
    launch_attention_backward_fma(a, stream);
}

template void own_attention_forward(const AttentionForward<float>&, cudaStream_t);
template void own_attention_forward(const AttentionForward<bf16>&, cudaStream_t);
template void own_attention_forward(const AttentionForward<bf16, float>&, cudaStream_t);
template void sm90_attention_forward(const AttentionForward<bf16>&, cudaStream_t);
template void sm90_attention_forward(const AttentionForward<bf16, float>&, cudaStream_t);
template void sm90_attention_backward(const AttentionBackward<bf16>&, std::span<float>, cudaStream_t);
template void sm90_attention_backward(const AttentionBackward<bf16, float>&, std::span<float>, cudaStream_t);
template void own_attention_backward(const AttentionBackward<float>&, cudaStream_t);
template void own_attention_backward(const AttentionBackward<bf16>&, cudaStream_t);
template void own_attention_backward(const AttentionBackward<bf16, float>&, cudaStream_t);
template void launch_attention_delta(const AttentionBackward<bf16>&, cudaStream_t);
template void launch_attention_delta(const AttentionBackward<bf16, float>&, cudaStream_t);
