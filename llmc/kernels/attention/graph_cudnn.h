// cuDNN's operation graphs, as far as attention needs them: tensors, operations between them, and a plan that runs
// them.
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

#if CUDNN_VERSION < 90000
#error "cudnn.h is of a version before 9.0, the least cuDNN that train_gpt can be built with (or build with USE_CUDNN=0)"
#endif

// The functions of libcudnn, found at run time. Throws Error(no_device) where there is no libcudnn.
struct CudnnLibrary {
    decltype(&cudnnGetVersion) version;   // 91900 is 9.19.0
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

// One of a graph's tensors.
struct CudnnTensor {
    int index = -1;   // into CudnnGraph::tensors(); -1: none
    explicit operator bool() const { return index >= 0; }
};

// A graph is data until it is built, so that tests can carry out its operations themselves.
class CudnnGraph {
public:
    using Tensor = CudnnTensor;
    struct TensorInfo {
        std::int64_t id;
        cudnnDataType_t type;
        CudnnTensorShape shape;
        bool is_virtual, by_value;
    };
    enum class Kind { pointwise, matmul, reduce, reshape };
    struct Operation {
        Kind kind;
        int mode;   // a cudnnPointwiseMode_t or cudnnReduceTensorOp_t
        Tensor out, x, y, condition;
        std::int64_t axis;
    };

    // Tensors in memory have ids above 0, chosen by the caller; several may share one (views of the same memory).
    // Tensors between operations exist only inside the fused kernel.
    Tensor in_memory(std::int64_t id, cudnnDataType_t type, const CudnnTensorShape& shape);
    Tensor scalar(std::int64_t id);   // fp32, read from the host when the plan runs
    Tensor between(cudnnDataType_t type, const CudnnTensorShape& shape);

    void pointwise(cudnnPointwiseMode_t mode, Tensor out, Tensor x, Tensor y = {}, Tensor condition = {});
    void index(Tensor out, Tensor like, int axis);   // out = the position along `axis`
    void matmul(Tensor out, Tensor a, Tensor b);
    void reduce(cudnnReduceTensorOp_t how, Tensor out, Tensor x);
    void reshape(Tensor out, Tensor x);

    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const std::vector<Operation>& operations() const { return operations_; }

    // The first of the heuristic's configurations that can be built and is deterministic. Throws Error(no_device) with
    // cuDNN's reason where there is none.
    CudnnPlan build(const CudnnTarget& target) const;

    // How many deterministic configurations the heuristic finds for the target; needs no GPU, but libcuda (its stub
    // will do).
    int accepted_configurations(const CudnnTarget& target) const;

private:
    std::vector<CudnnDescriptor> configurations(const CudnnTarget& target) const;

    std::vector<TensorInfo> tensors_;
    std::vector<Operation> operations_;
};
