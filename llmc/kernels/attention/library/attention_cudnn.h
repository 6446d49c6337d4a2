// Describes attention to cuDNN as a graph for a layout, and holds the plan that cuDNN makes of the graph for a device.
//
// The graph is described to cudnn-frontend, NVIDIA's header-only library over cuDNN's backend, which writes attention
// in the forms that cuDNN's engines know and works around defects of single versions. attention_cudnn_test.cpp checks
// without a GPU that the graph is the attention of attention.h, and that engines of cuDNN accept it for an H200.
// docs/performance.md has its speed there.
//
// Engines whose results depend on timing are never taken. cuDNN lists the others, the fastest first; the first whose
// workspace is within a limit becomes the plan. The choice is not measured, so a resumed run has the same plan.
// Backward's fastest engine on sm_90 writes dS, 2 B NH Tq Tk bytes. Where that is too much, cuDNN 9.25 and later with
// cudnn-frontend 1.32 and later order the additions to dQ instead, which needs 4 B NH Tq HS bytes and is slower; with
// earlier ones backward is refused.
//
// cuDNN is loaded when first used, not linked: a machine without it runs the program all the same, with own attention.
#pragma once

#include <cudnn.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "llmc/base/dtype.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_mask.h"

namespace cudnn_frontend::graph {
class Graph;
}

// The tensors of attention; also their ids in a graph.
enum class Attended : std::uint8_t { q = 1, k, v, out, dout, dq, dk, dv, lse };

// Strides (batch, head, token) of a tensor of heads.
using HeadStrides = std::array<std::int64_t, 3>;

// Everything that a plan depends on.
struct AttentionLayout {
    int B, NH, KV, Tq, Tk, HS;   // KV: heads of keys and values
    float scale;
    bool masked, backward;                  // masked: some query does not see every key
    std::array<HeadStrides, 9> strides{};   // by Attended; set for tensors of the call
    auto operator<=>(const AttentionLayout&) const = default;
};

// Calls visit(tensor, view) for each tensor of heads of a call.
template <class T, class O, class Visit>
void for_heads(const AttentionForward<T, O>& a, Visit visit) {
    visit(Attended::q, a.q), visit(Attended::k, a.k), visit(Attended::v, a.v), visit(Attended::out, a.out);
}
template <class T, class G, class Visit>
void for_heads(const AttentionBackward<T, G>& a, Visit visit) {
    visit(Attended::q, a.q), visit(Attended::k, a.k), visit(Attended::v, a.v), visit(Attended::out, a.out);
    visit(Attended::dout, a.dout), visit(Attended::dq, a.dq), visit(Attended::dk, a.dk), visit(Attended::dv, a.dv);
}

// Returns the layout of a forward or backward call.
template <class Arguments>
AttentionLayout layout_of(const Arguments& a) {
    const AttentionShape& s = a.shape;
    constexpr bool backward = requires { a.dout; };
    const bool masked = !attention_mask<false>(s, 0).is_full();
    AttentionLayout layout{s.B, s.NH, s.kv_heads(), s.Tq, s.Tk, s.HS, s.scale, masked, backward};
    for_heads(a, [&](Attended tensor, const auto& view) {
        layout.strides[static_cast<std::size_t>(tensor)] = {view.batch, view.head, view.token};
    });
    return layout;
}

// Returns the layout of the program's own calls: q, k, v and their gradients packed, the others without gaps.
AttentionLayout packed_layout(const AttentionShape& shape, bool backward);

// Returns the error that cuDNN is reported to make for this shape on a device of this compute capability (90: sm_90);
// empty if none is known.
std::string wrong_in_cudnn(const AttentionShape& shape, bool backward, int compute_capability);

// Returns what to do about a failure of cuDNN that says `why`; empty where nothing is known.
std::string cudnn_advice(const std::string& why);

// Target of a plan: the device of a handle, or (to ask for support where there is no GPU) a JSON description of a
// device as cuDNN 9.8 and later write it.
struct CudnnTarget {
    cudnnHandle_t handle = nullptr;
    std::string device_json;
    int compute_capability = 0;   // compute capability of the described device
};

// Returns a new handle of the current device; the caller owns it. Throws Error(no_device) where cuDNN cannot be loaded
// or used.
cudnnHandle_t make_cudnn_handle();

// A graph of attention and its plan. Every call throws Error(no_device) with cuDNN's reason.
class CudnnAttention {
public:
    using Graph = cudnn_frontend::graph::Graph;

    CudnnAttention(const AttentionLayout& layout, CudnnTarget target);
    Graph& graph() const { return *graph_; }

    // Finds the engines for the graph and takes the first within the limit. Needs no GPU, but libcuda (its stub will
    // do).
    void find_engine(std::size_t workspace_limit_bytes) const;

    // Builds the plan of the first engine.
    void build() const;
    std::size_t workspace_bytes() const;

    // Runs the plan on `stream`. `memory`: device pointers by the tensors' ids.
    void run(std::unordered_map<std::int64_t, void*> memory, void* workspace, cudaStream_t stream) const;

private:
    CudnnTarget target_;
    std::shared_ptr<Graph> graph_;
};
