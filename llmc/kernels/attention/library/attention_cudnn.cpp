#ifdef USE_CUDNN

#include "llmc/kernels/attention/library/attention_cudnn.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "llmc/base/error.h"

#if CUDNN_VERSION < 90000 || CUDNN_FRONTEND_VERSION < 12000
#error "cuDNN 9.0 and cudnn-frontend 1.20 or later are needed (or build with USE_CUDNN=0)"
#endif

void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;

void* load() {
    void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);   // stays loaded
    if (library == nullptr) {
        throw Error(ErrorKind::no_device, text("cuDNN 9 cannot be loaded: ", dlerror()),
                    "Install libcudnn9, or use --attention own.");
    }
    // A cuDNN built for another CUDA version ends the program at its first real call, because it misses that version's
    // cuBLASLt.
    void* const cudart_version = dlsym(library, "cudnnGetCudartVersion");
    const std::size_t theirs = reinterpret_cast<decltype(&cudnnGetCudartVersion)>(cudart_version)() / 1000;
    const std::size_t ours = CUDART_VERSION / 1000;
    if (theirs != ours) {
        throw Error(ErrorKind::no_device, text("libcudnn is for CUDA ", theirs, ", and this build for CUDA ", ours),
                    text("Install cuDNN 9 for CUDA ", ours, ", or use --attention own."));
    }
    // With several CUDA runtimes on a machine frontend 1.25 and later take this one; earlier ones refuse to choose.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", text("libcudart.so.", ours).c_str(), 0);
    return fe::cudnn_dlhandle = library;
}

// Loads cuDNN once. Must run before any call of the frontend.
void need_cudnn() { [[maybe_unused]] static void* const library = load(); }

// Throws Error(no_device) with the first three lines of `why`: messages of the frontend and cuDNN fill pages, and the
// first lines name the reason.
[[noreturn]] void refuse(const std::string& what, const std::string& why) {
    std::size_t end = 0;
    for (int line = 0; line < 3 && end < why.size(); line++) end = std::min(why.find('\n', end + 1), why.size());
    const std::string advice = cudnn_advice(why);   // in the message: --attention auto says why, and gives no hint
    throw Error(ErrorKind::no_device,
                text("cuDNN: ", what, " failed: ", why.substr(0, end), advice.empty() ? "" : ". ", advice));
}
void check(const fe::error_t& error, const std::string& what) {
    if (error.is_bad()) refuse(what, error.err_msg);
}
void check(cudnnStatus_t status, const std::string& what) {
    if (status != CUDNN_STATUS_SUCCESS) refuse(what, fe::detail::get_error_string(status));
}

// Runs `body` and returns its result. Turns an exception of the frontend, thrown where a library lacks a function, into
// an Error.
template <class Body>
auto guarded(Body body) {
    try {
        need_cudnn();
        return body();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        refuse("a call", error.what());
    }
}

// Gives `t` the shape, strides and id of a tensor of the layout.
fe::graph::Tensor_attributes& shape(fe::graph::Tensor_attributes& t, const AttentionLayout& l, Attended which) {
    const std::int64_t NH = l.NH, Tq = l.Tq;
    t.set_uid(static_cast<std::int64_t>(which));
    if (which == Attended::lse)
        return t.set_data_type(fe::DataType_t::FLOAT).set_dim({l.B, NH, Tq, 1}).set_stride({NH * Tq, Tq, 1, 1});
    const bool of_keys = which == Attended::k || which == Attended::v || which == Attended::dk || which == Attended::dv;
    const HeadStrides& s = l.strides[static_cast<std::size_t>(which)];
    return t.set_dim({l.B, of_keys ? l.KV : NH, of_keys ? l.Tk : Tq, l.HS}).set_stride({s[0], s[1], s[2], 1});
}

void describe(Graph& g, const AttentionLayout& l) {
    auto in = [&](Attended which) {
        fe::graph::Tensor_attributes t;
        return g.tensor(shape(t, l, which));
    };
    auto out = [&](const auto& tensor, Attended which) { shape(tensor->set_output(true), l, which); };
    const auto q = in(Attended::q), k = in(Attended::k), v = in(Attended::v);
    if (!l.backward) {
        auto how = fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(l.scale);
        const auto [attended, lse] = g.sdpa(q, k, v, how.set_causal_mask(l.masked));
        out(attended, Attended::out), out(lse, Attended::lse);
        return;
    }
    auto how = fe::graph::SDPA_backward_attributes().set_attn_scale(l.scale).set_deterministic_algorithm(true);
    const auto [dq, dk, dv] = g.sdpa_backward(q, k, v, in(Attended::out), in(Attended::dout), in(Attended::lse),
                                              how.set_causal_mask(l.masked));
    out(dq, Attended::dq), out(dk, Attended::dk), out(dv, Attended::dv);
}

}   // namespace

AttentionLayout packed_layout(const AttentionShape& s, bool backward) {
    auto packed = [&](int tokens) { return packed_heads<bf16>(nullptr, 0, tokens, s.NH, s.HS, s.kv_heads()); };
    const auto q = packed(s.Tq), k = packed(s.Tk), alone = contiguous_heads<bf16>(nullptr, s.Tq, s.NH, s.HS);
    if (!backward) return layout_of(AttentionForward<bf16>{alone, nullptr, q, k, k, s});
    return layout_of(AttentionBackward<bf16>{q, k, k, nullptr, alone, alone, nullptr, q, k, k, s});
}

std::string wrong_in_cudnn(const AttentionShape& s, bool backward, int compute_capability) {
    const bool masked = !attention_mask<false>(s, 0).is_full();
    if (s.B == 1 && s.NH == 1 && (s.Tq == 1 || s.Tk == 1))
        return "cuDNN: it is reported to crash near one token of one head";
    if (backward && !masked && s.Tk % 128 == 64 && compute_capability == 90)
        return text("cuDNN: backward without a mask is reported to give NaN on sm_90 for Tk=", s.Tk,
                    ", a multiple of 64 but not of 128");
    return "";
}

std::string cudnn_advice(const std::string& why) {
    if (why.find("Multiple libcudart libraries") == std::string::npos) return "";
    return text("Build with cudnn-frontend 1.25 or later, which takes libcudart.so.", CUDART_VERSION / 1000,
                " of several, or leave the other one out of the libraries' path (ldconfig -p, LD_LIBRARY_PATH)");
}

cudnnHandle_t make_cudnn_handle() {
    return guarded([] {
        cudnnHandle_t handle = nullptr;
        check(fe::detail::create_handle(&handle), "start");
        return handle;
    });
}

CudnnAttention::CudnnAttention(const AttentionLayout& layout, CudnnTarget target)
    : target_(std::move(target)), graph_(std::make_shared<Graph>()) {
    guarded([&] {
        graph_->set_io_data_type(fe::DataType_t::BFLOAT16);
        graph_->set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
        if (const std::string& json = target_.device_json; !json.empty()) {
            auto device = std::make_shared<fe::DeviceProperties>();
            check(device->deserialize({json.c_str(), json.c_str() + json.size() + 1}), "reading a device");
            graph_->set_device_properties(device).set_sm_version(target_.compute_capability);
        }
        describe(*graph_, layout);
        check(graph_->validate(), "checking the graph of attention");
    });
}

void CudnnAttention::find_engine(std::size_t workspace_limit_bytes) const {
    guarded([&] {
        const std::string limit = text(workspace_limit_bytes);
        // Beyond this limit frontend 1.32 and later ask for an engine that orders the additions to dQ.
        setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", limit.c_str(), 1);
        check(target_.handle ? graph_->build_operation_graph(target_.handle) : graph_->build_operation_graph(),
              "building the graph of attention");
        check(graph_->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), "asking for engines");
        graph_->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
        graph_->deselect_workspace_greater_than(static_cast<std::int64_t>(workspace_limit_bytes));
        check(graph_->check_support(), text("a deterministic engine with a workspace of ", limit, " bytes"));
    });
}

void CudnnAttention::build() const {
    guarded([&] { check(graph_->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), "building a plan"); });
}

std::size_t CudnnAttention::workspace_bytes() const { return static_cast<std::size_t>(graph_->get_workspace_size()); }

void CudnnAttention::run(std::unordered_map<std::int64_t, void*> memory, void* workspace, cudaStream_t stream) const {
    guarded([&] {
        check(fe::detail::set_stream(target_.handle, stream), "choosing the stream");
        check(graph_->execute(target_.handle, memory, workspace), "running a plan");
    });
}

#endif   // USE_CUDNN
