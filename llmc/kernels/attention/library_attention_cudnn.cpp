// Library attention on a GPU: cuDNN's flash attention, asked for as a graph of operations.
//
// cuDNN 9 has no one operation for causal training; its engines recognise attention by the exact form of the graph:
//
//   forward    S = scale Q K^T, masked; M = max_j S; E = exp(S - M); Z = sum_j E; lse = M + log Z; O = (E / Z) V
//   backward   delta = sum_c dO O (times 1, where dropout would be); P = exp(mask(scale Q K^T - lse)); dV = P^T dO
//              dS = scale P (dO V^T - delta); dK = dS^T Q; dQ = dS K
//
// These are the forms that NVIDIA's cudnn-frontend (1.23, MIT licence, scaled_dot_product_flash_attention.h) lowers its
// attention to, with its deterministic variant of backward: dQ is a result of the graph itself, not of an fp32 buffer
// that blocks add to in any order. (That variant may use a workspace of size B NH Tq Tk in bf16.)
//
// Checked without a GPU (graph_cudnn_test.cpp): that the operations of both graphs are attention and its gradients, and
// that engines of cuDNN 9.19 and 9.28 accept both for an H200. Not yet run on a GPU.

#include "llmc/kernels/attention/library_attention.h"

#include "llmc/base/check.h"

#ifdef USE_CUDNN

#include <limits>
#include <type_traits>

#include "llmc/kernels/attention/attention_graph_cudnn.h"
#include "llmc/kernels/matmul/plan_cache.h"

namespace {

// The handle and the plans of this thread's device, made once and kept to the end of the process: models and tries of a
// model come and go, and a plan can take half a second. Never destroyed: at the end of a process the device may be
// gone.
struct Cudnn {
    cudnnHandle_t handle = nullptr;
    int compute_capability = 0;                                     // 90: sm_90
    PlanCache<std::pair<bool, AttentionLayout>, CudnnPlan> plans;   // backward, layout

    Cudnn() {
        int device = 0, major = 0, minor = 0;
        CUDA_CHECK(cudaGetDevice(&device));
        CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
        CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
        compute_capability = 10 * major + minor;
        const CudnnLibrary& c = CudnnLibrary::get();
        c.check(c.create(&handle), "start");
    }
    static Cudnn& get() {
        static thread_local Cudnn* cudnn = new Cudnn;
        return *cudnn;
    }

    // Throws Error(no_device) with the reason where there is none.
    const CudnnPlan& plan(const AttentionShape& shape, const AttentionLayout& layout, bool backward) {
        const std::string reason = unsupported_by_cudnn(shape, backward, compute_capability);
        if (!reason.empty()) throw Error(ErrorKind::no_device, reason);
        return plans.get({backward, layout}, [&] {
            return (backward ? backward_attention_graph(layout) : forward_attention_graph(layout)).build({handle, ""});
        });
    }
};

}   // namespace

struct LibraryAttention::Impl {
    Arena& arena;
    DeviceBuffer<std::uint8_t> workspace;

    // The plan, with room for it.
    const CudnnPlan& prepare(const AttentionShape& shape, const AttentionLayout& layout, bool backward) {
        const CudnnPlan& plan = Cudnn::get().plan(shape, layout, backward);
        if (plan.workspace_bytes() > workspace.bytes()) {
            workspace = {};   // given back before more is asked for
            workspace = arena.allocate<std::uint8_t>("workspace/attention", plan.workspace_bytes());
        }
        return plan;
    }

    void run(const CudnnPlan& plan, std::vector<std::pair<std::int64_t, void*>> pointers, const AttentionShape& shape,
             cudaStream_t stream) {
        const CudnnLibrary& c = CudnnLibrary::get();
        using Limits = std::numeric_limits<float>;
        // versions before 9.10 want a finite score where nothing is seen
        float scale = shape.scale, hidden = c.version() >= 91000 ? -Limits::infinity() : Limits::lowest(), one = 1.0f;
        pointers.push_back({AttentionTensor::scale, &scale});
        if (sees_less_than_all(shape)) pointers.push_back({AttentionTensor::hidden, &hidden});
        if (pointers.front().first == AttentionTensor::dout) pointers.push_back({AttentionTensor::one, &one});
        const cudnnHandle_t handle = Cudnn::get().handle;
        c.check(c.set_stream(handle, stream), "choosing the stream");
        plan.run(handle, pointers, workspace.data());
    }
};

namespace {

template <class T>
void* address(const HeadsView<T>& view) {
    return const_cast<std::remove_const_t<T>*>(view.data);
}

}   // namespace

template <class T, class G>
std::string LibraryAttention::refusal(const AttentionShape& shape, bool backward) {
    if constexpr (!std::is_same_v<T, bf16> || !std::is_same_v<G, bf16>) {
        (void)shape, (void)backward;
        return "cuDNN's attention reads and writes 16-bit numbers only";
    } else {
        try {
            const AttentionLayout layout = packed_layout(shape);
            (void)Cudnn::get().plan(shape, forward_part(layout), false);
            if (backward) (void)Cudnn::get().plan(shape, layout, true);
        } catch (const Error& error) {
            return error.message();
        }
        return "";
    }
}

LibraryAttention::LibraryAttention(Arena& arena) : impl_(new Impl{arena, {}}) {
    Cudnn::get();   // throws where there is no cuDNN
}
LibraryAttention::~LibraryAttention() = default;

template <class T, class O>
void LibraryAttention::prepare(const AttentionForward<T, O>& a) {
    if constexpr (std::is_same_v<T, bf16> && std::is_same_v<O, bf16>) {
        impl_->prepare(a.shape, layout_of(a), false);
    } else {
        throw Error(ErrorKind::no_device, refusal<T, O>(a.shape));
    }
}

template <class T, class G>
void LibraryAttention::prepare(const AttentionBackward<T, G>& a) {
    if constexpr (std::is_same_v<T, bf16> && std::is_same_v<G, bf16>) {
        impl_->prepare(a.shape, layout_of(a), true);
    } else {
        throw Error(ErrorKind::no_device, refusal<T, G>(a.shape));
    }
}

template <class T, class O>
void LibraryAttention::forward(const AttentionForward<T, O>& a, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, bf16> && std::is_same_v<O, bf16>) {
        impl_->run(impl_->prepare(a.shape, layout_of(a), false),
                   {{AttentionTensor::q, address(a.q)},
                    {AttentionTensor::k, address(a.k)},
                    {AttentionTensor::v, address(a.v)},
                    {AttentionTensor::out, address(a.out)},
                    {AttentionTensor::lse, a.lse}},
                   a.shape, stream);
    } else {
        throw Error(ErrorKind::no_device, refusal<T, O>(a.shape));
    }
}

template <class T, class G>
void LibraryAttention::backward(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, bf16> && std::is_same_v<G, bf16>) {
        impl_->run(impl_->prepare(a.shape, layout_of(a), true),
                   {{AttentionTensor::dout, address(a.dout)},
                    {AttentionTensor::q, address(a.q)},
                    {AttentionTensor::k, address(a.k)},
                    {AttentionTensor::v, address(a.v)},
                    {AttentionTensor::out, address(a.out)},
                    {AttentionTensor::lse, const_cast<float*>(a.lse)},
                    {AttentionTensor::delta, a.delta},
                    {AttentionTensor::dq, address(a.dq)},
                    {AttentionTensor::dk, address(a.dk)},
                    {AttentionTensor::dv, address(a.dv)}},
                   a.shape, stream);
    } else {
        throw Error(ErrorKind::no_device, refusal<T, G>(a.shape));
    }
}

#else   // built on a machine without cuDNN's headers

struct LibraryAttention::Impl {};

namespace {
constexpr const char* not_built = "this program was built without cuDNN (no cudnn.h where it was built)";
}

template <class T, class G>
std::string LibraryAttention::refusal(const AttentionShape&, bool) {
    return not_built;
}

LibraryAttention::LibraryAttention(Arena&) { throw Error(ErrorKind::no_device, not_built); }
LibraryAttention::~LibraryAttention() = default;

template <class T, class O>
void LibraryAttention::prepare(const AttentionForward<T, O>&) {
    throw Error(ErrorKind::no_device, not_built);
}
template <class T, class G>
void LibraryAttention::prepare(const AttentionBackward<T, G>&) {
    throw Error(ErrorKind::no_device, not_built);
}
template <class T, class O>
void LibraryAttention::forward(const AttentionForward<T, O>&, cudaStream_t) {
    throw Error(ErrorKind::no_device, not_built);
}
template <class T, class G>
void LibraryAttention::backward(const AttentionBackward<T, G>&, cudaStream_t) {
    throw Error(ErrorKind::no_device, not_built);
}

#endif

bool LibraryAttention::surely_faster() { return false; }

#define INSTANTIATE(T, G)                                                                       \
    template std::string LibraryAttention::refusal<T, G>(const AttentionShape&, bool);          \
    template void LibraryAttention::prepare<T, G>(const AttentionForward<T, G>&);               \
    template void LibraryAttention::prepare<T, G>(const AttentionBackward<T, G>&);              \
    template void LibraryAttention::forward<T, G>(const AttentionForward<T, G>&, cudaStream_t); \
    template void LibraryAttention::backward<T, G>(const AttentionBackward<T, G>&, cudaStream_t);
INSTANTIATE(float, float)
INSTANTIATE(bf16, bf16)
INSTANTIATE(bf16, float)
