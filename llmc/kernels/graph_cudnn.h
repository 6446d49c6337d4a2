// cuDNN's operation graphs, as far as attention needs them: tensors, operations between them, and a plan that runs them.
//
// cuDNN fuses a graph of small operations into one kernel if the graph has a form that one of its engines knows. What
// that form is for attention is said in library_attention_cudnn.cpp; this file is the plain part: a graph is built from
// backend descriptors (cudnn_graph.h), its heuristic proposes engine configurations, and the first that can be built
// becomes the plan.
//
// cuDNN is loaded when first used, not linked: a machine without it runs the program all the same, with own attention.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The functions of libcudnn, found at run time. Throws Error(no_device) where there is no libcudnn.
struct CudnnLibrary {
    decltype(&cudnnCreate) create;
    decltype(&cudnnDestroy) destroy;
    decltype(&cudnnSetStream) set_stream;
    decltype(&cudnnGetErrorString) error_string;
    decltype(&cudnnGetLastErrorString) last_error_string;
    decltype(&cudnnBackendCreateDescriptor) create_descriptor;
    decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
    decltype(&cudnnBackendSetAttribute) set_attribute;
    decltype(&cudnnBackendGetAttribute) get_attribute;
    decltype(&cudnnBackendFinalize) finalize;
    decltype(&cudnnBackendExecute) execute;

    static const CudnnLibrary& get();

    // Throws Error(no_device) naming the call and cuDNN's reason if `status` is not success.
    void check(cudnnStatus_t status, const std::string& what) const;
};

// A backend descriptor, destroyed with its last reference.
using CudnnDescriptor = std::shared_ptr<void>;

// (B, NH, rows, columns), with the elements between neighbours along each.
struct CudnnTensorShape {
    std::array<std::int64_t, 4> sizes, strides;
};

// What a graph is made for: the device of a handle, or (to ask for support where there is no GPU) a description of one
// as cuDNN writes it: JSON.
struct CudnnTarget {
    cudnnHandle_t handle = nullptr;
    std::string device_json;
};

// A graph compiled for one device. Pointers are given by the tensors' ids; those of scalars point to host memory.
class CudnnPlan {
public:
    std::size_t workspace_bytes() const { return workspace_bytes_; }
    void run(cudnnHandle_t handle, const std::vector<std::pair<std::int64_t, void*>>& pointers, void* workspace) const;

private:
    friend class CudnnGraph;
    CudnnDescriptor plan_;
    std::size_t workspace_bytes_ = 0;
};

class CudnnGraph {
public:
    using Tensor = CudnnDescriptor;

    // Tensors in memory have ids above 0, chosen by the caller; several may share one (views of the same memory).
    // Tensors between operations exist only inside the fused kernel.
    Tensor in_memory(std::int64_t id, cudnnDataType_t type, const CudnnTensorShape& shape);
    Tensor scalar(std::int64_t id);   // fp32, read from the host when the plan runs
    Tensor between(cudnnDataType_t type, const CudnnTensorShape& shape);

    void pointwise(cudnnPointwiseMode_t mode, const Tensor& out, const Tensor& x, const Tensor& y = nullptr,
                   const Tensor& condition = nullptr);
    void index(const Tensor& out, const Tensor& like, int axis);   // out = the position along `axis`
    void matmul(const Tensor& out, const Tensor& a, const Tensor& b);
    void reduce(cudnnReduceTensorOp_t how, const Tensor& out, const Tensor& x);
    void reshape(const Tensor& out, const Tensor& x);

    // The first of the heuristic's configurations that can be built and is deterministic. Throws Error(no_device) with
    // cuDNN's reason where there is none.
    CudnnPlan build(const CudnnTarget& target) const;

    // How many configurations the engines accept for the target; needs no GPU, but libcuda (its stub will do).
    int accepted_configurations(const CudnnTarget& target) const;

private:
    Tensor tensor(std::int64_t id, cudnnDataType_t type, const CudnnTensorShape& shape, bool is_virtual, bool by_value);
    void add_pointwise(cudnnPointwiseMode_t mode, const Tensor& out, const Tensor& x, const Tensor& y,
                       const Tensor& condition, std::int64_t axis);
    std::vector<CudnnDescriptor> configurations(const CudnnTarget& target) const;

    std::vector<CudnnDescriptor> operations_;
    std::int64_t next_virtual_id_ = 1000;
};
