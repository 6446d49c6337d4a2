// Library attention on a GPU: uses cuDNN's flash attention (attention_cudnn.h).

#include "llmc/kernels/attention/library/library_attention.h"

#include "llmc/base/check.h"
#include "llmc/kernels/attention/attention_kinds.h"

#ifdef USE_CUDNN

#include <algorithm>
#include <type_traits>
#include <utility>

#include "llmc/kernels/attention/library/attention_cudnn.h"
#include "llmc/kernels/matmul/plan_cache.h"

namespace {

// Handle and plans of this thread's device, made once and kept to the end of the process: models come and go (also
// those built only to try sizes), and a plan can take half a second. Never destroyed: at the end of a process the
// device may be gone.
struct Cudnn {
    cudnnHandle_t handle = nullptr;
    int compute_capability = 0;              // 90: sm_90
    std::size_t workspace_limit_bytes = 0;   // a sixteenth of the device's memory: 5 GB of 80
    PlanCache<AttentionLayout, CudnnAttention> plans;

    Cudnn() {
        int device = 0, major = 0, minor = 0;
        std::size_t free_bytes = 0, all_bytes = 0;
        CUDA_CHECK(cudaGetDevice(&device));
        CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
        CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
        CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
        compute_capability = 10 * major + minor;
        workspace_limit_bytes = all_bytes / 16;
        handle = make_cudnn_handle();
    }
    static Cudnn& get() {
        static thread_local Cudnn* cudnn = new Cudnn;
        return *cudnn;
    }

    // Returns the plan of a layout, building it at the first call. Throws Error(no_device) with the reason if there is
    // none.
    const CudnnAttention& plan(const AttentionShape& shape, const AttentionLayout& layout) {
        const std::string reason = wrong_in_cudnn(shape, layout.backward, compute_capability);
        if (!reason.empty()) throw Error(ErrorKind::no_device, reason);
        return plans.get(layout, [&] {
            const CudnnAttention attention(layout, {handle, "", 0});
            attention.find_engine(workspace_limit_bytes);
            attention.build();
            return attention;
        });
    }
};

// Checks what nobody may ask of cuDNN (LibraryAttention::limits): its graph would read other numbers.
template <class T, class O>
void check_limits(const AttentionShape& shape) {
    const std::string why =
        beyond(LibraryAttention::limits(), shape, !std::is_same_v<T, bf16>, !std::is_same_v<O, bf16>);
    ENSURE(why.empty(), "cuDNN's attention: ", why);
}

}   // namespace

struct LibraryAttention::Impl {
    Arena& arena;
    DeviceBuffer<std::uint8_t> workspace;

    // Returns the plan and allocates workspace for it.
    template <template <class, class> class Arguments, class T, class O>
    const CudnnAttention& prepare(const Arguments<T, O>& a) {
        check_limits<T, O>(a.shape);
        const CudnnAttention& plan = Cudnn::get().plan(a.shape, layout_of(a));
        if (plan.workspace_bytes() > workspace.bytes()) {
            workspace = {};   // freed before more is allocated
            workspace = arena.allocate<std::uint8_t>("workspace/attention", plan.workspace_bytes());
        }
        return plan;
    }

    template <class Arguments>
    void run(const Arguments& a, cudaStream_t stream) {
        std::unordered_map<std::int64_t, void*> memory;
        auto put = [&](Attended tensor, const void* data) {
            memory[static_cast<std::int64_t>(tensor)] = const_cast<void*>(data);
        };
        for_heads(a, [&](Attended tensor, const auto& view) { put(tensor, view.data); });
        put(Attended::lse, a.lse);
        prepare(a).run(std::move(memory), workspace.data(), stream);
    }
};

template <class T, class G>
std::size_t LibraryAttention::workspace_bytes(const AttentionShape& shape, bool backward) {
    check_limits<T, G>(shape);
    const std::size_t bytes = Cudnn::get().plan(shape, packed_layout(shape, false)).workspace_bytes();
    if (!backward) return bytes;
    return std::max(bytes, Cudnn::get().plan(shape, packed_layout(shape, true)).workspace_bytes());
}

LibraryAttention::LibraryAttention(Arena& arena) : impl_(new Impl{arena, {}}) {
    Cudnn::get();   // throws where there is no cuDNN
}

#else   // built on a machine without the headers

namespace {

constexpr const char* not_built =
    "this program was built without cuDNN (no cudnn.h, or no cudnn_frontend.h, where it was built)";

}   // namespace

struct LibraryAttention::Impl {   // never made
    template <class Arguments>
    void prepare(const Arguments&) {}
    template <class Arguments>
    void run(const Arguments&, cudaStream_t) {}
};

template <class T, class G>
std::size_t LibraryAttention::workspace_bytes(const AttentionShape&, bool) {
    throw Error(ErrorKind::no_device, not_built);
}

LibraryAttention::LibraryAttention(Arena&) { throw Error(ErrorKind::no_device, not_built); }

#endif

LibraryAttention::~LibraryAttention() = default;

const AttentionLimits& LibraryAttention::limits() {
    static const AttentionLimits cudnn{
        .fp32 = false, .fp32_results = false, .documents = false, .positions = false, .largest_head = 128};
    return cudnn;
}

template <class T, class G>
std::string LibraryAttention::refusal(const AttentionShape& shape, bool backward) {
    try {
        workspace_bytes<T, G>(shape, backward);
    } catch (const Error& error) {
        return error.message();
    }
    return "";
}

template <class T, class O>
void LibraryAttention::prepare(const AttentionForward<T, O>& a) {
    impl_->prepare(a);
}
template <class T, class G>
void LibraryAttention::prepare(const AttentionBackward<T, G>& a) {
    impl_->prepare(a);
}

template <class T, class O>
void LibraryAttention::forward(const AttentionForward<T, O>& a, cudaStream_t stream) {
    impl_->run(a, stream);
}
template <class T, class G>
void LibraryAttention::backward(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    impl_->run(a, stream);
}

#define INSTANTIATE(T, G)                                                                       \
    template std::string LibraryAttention::refusal<T, G>(const AttentionShape&, bool);          \
    template std::size_t LibraryAttention::workspace_bytes<T, G>(const AttentionShape&, bool);  \
    template void LibraryAttention::prepare<T, G>(const AttentionForward<T, G>&);               \
    template void LibraryAttention::prepare<T, G>(const AttentionBackward<T, G>&);              \
    template void LibraryAttention::forward<T, G>(const AttentionForward<T, G>&, cudaStream_t); \
    template void LibraryAttention::backward<T, G>(const AttentionBackward<T, G>&, cudaStream_t);
INSTANTIATE(float, float)
INSTANTIATE(bf16, bf16)
INSTANTIATE(bf16, float)
