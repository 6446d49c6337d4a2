#ifdef USE_CUDNN

#include "llmc/kernels/attention/graph_cudnn.h"

#include <dlfcn.h>

#include <algorithm>

#include "llmc/base/error.h"

namespace {

template <class Function>
void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw Error(ErrorKind::no_device, text("libcudnn has no ", name, ": version 9 is needed"));
}

// cuDNN for another CUDA ends the program at its first real call, for want of that CUDA's cuBLASLt.
void refuse_other_cuda(void* library) {
    decltype(&cudnnGetCudartVersion) cudart_version = nullptr;
    find(library, cudart_version, "cudnnGetCudartVersion");
    const std::size_t theirs = cudart_version() / 1000, ours = CUDART_VERSION / 1000;
    if (theirs == ours) return;
    throw Error(ErrorKind::no_device, text("libcudnn is for CUDA ", theirs, ", and this build for CUDA ", ours),
                text("Install cuDNN 9 for CUDA ", ours, ", or use --attention own."));
}

CudnnLibrary load() {
    void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);   // stays loaded
    if (library == nullptr) {
        throw Error(ErrorKind::no_device, text("cuDNN 9 cannot be loaded: ", dlerror()),
                    "Install libcudnn9, or use --attention own.");
    }
    refuse_other_cuda(library);
    CudnnLibrary c{};
    find(library, c.version, "cudnnGetVersion");
    find(library, c.create, "cudnnCreate");
    find(library, c.destroy, "cudnnDestroy");
    find(library, c.set_stream, "cudnnSetStream");
    find(library, c.error_string, "cudnnGetErrorString");
    find(library, c.last_error_string, "cudnnGetLastErrorString");
    find(library, c.create_descriptor, "cudnnBackendCreateDescriptor");
    find(library, c.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    find(library, c.set_attribute, "cudnnBackendSetAttribute");
    find(library, c.get_attribute, "cudnnBackendGetAttribute");
    find(library, c.finalize, "cudnnBackendFinalize");
    find(library, c.execute, "cudnnBackendExecute");
    return c;
}

CudnnDescriptor create(cudnnBackendDescriptorType_t type) {
    const CudnnLibrary& c = CudnnLibrary::get();
    cudnnBackendDescriptor_t descriptor = nullptr;
    c.check(c.create_descriptor(type, &descriptor), "creating a descriptor");
    return CudnnDescriptor(descriptor, [&c](void* d) { c.destroy_descriptor(d); });
}

void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         std::int64_t count, const void* values) {
    const CudnnLibrary& c = CudnnLibrary::get();
    c.check(c.set_attribute(d.get(), name, type, count, values), text("setting attribute ", static_cast<int>(name)));
}

void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    cudnnBackendDescriptor_t raw = value.get();
    set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

void finalize(const CudnnDescriptor& d, const char* what) {
    const CudnnLibrary& c = CudnnLibrary::get();
    c.check(c.finalize(d.get()), text("finishing ", what));
}

// A device by its description: its attributes came with cuDNN 9.8.
#if CUDNN_VERSION >= 90800
constexpr auto heuristic_device = CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, plan_device = CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP;

CudnnDescriptor device_properties(const CudnnTarget& target) {
    if (target.device_json.empty()) return nullptr;
    CudnnDescriptor d = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        static_cast<std::int64_t>(target.device_json.size() + 1), target.device_json.c_str());
    finalize(d, "the description of a device");
    return d;
}
#else
constexpr cudnnBackendAttributeName_t heuristic_device{}, plan_device{};

CudnnDescriptor device_properties(const CudnnTarget& target) {
    if (target.device_json.empty()) return nullptr;
    throw Error(ErrorKind::no_device, "cuDNN knows descriptions of devices since 9.8");
}
#endif

// ---- from a graph's data to cuDNN's descriptors

using Descriptors = std::vector<CudnnDescriptor>;   // of the graph's tensors, by index

CudnnDescriptor lower(const CudnnGraph::TensorInfo& tensor) {
    const std::int64_t alignment_bytes = 16;
    CudnnDescriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &tensor.id);
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor.type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor.shape.sizes.data());
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor.shape.strides.data());
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment_bytes);
    set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &tensor.is_virtual);
    set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &tensor.by_value);
    finalize(d, "a tensor");
    return d;
}

CudnnDescriptor lower_pointwise(const CudnnGraph::Operation& o, const Descriptors& tensors) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    const auto mode = static_cast<cudnnPointwiseMode_t>(o.mode);
    CudnnDescriptor how = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &o.axis);
    finalize(how, "a pointwise mode");
    CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors[o.x.index]);
    if (o.y) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors[o.y.index]);
    set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors[o.out.index]);
    if (o.condition) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors[o.condition.index]);
    finalize(operation, "a pointwise operation");
    return operation;
}

CudnnDescriptor lower_matmul(const CudnnGraph::Operation& o, const Descriptors& tensors) {
    const cudnnDataType_t accumulator = CUDNN_DATA_FLOAT;
    CudnnDescriptor how = create(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &accumulator);
    finalize(how, "a matmul mode");
    CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors[o.x.index]);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors[o.y.index]);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors[o.out.index]);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    finalize(operation, "a matmul");
    return operation;
}

CudnnDescriptor lower_reduce(const CudnnGraph::Operation& o, const Descriptors& tensors) {
    const cudnnDataType_t accumulator = CUDNN_DATA_FLOAT;
    const auto mode = static_cast<cudnnReduceTensorOp_t>(o.mode);
    CudnnDescriptor how = create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &accumulator);
    finalize(how, "a reduction mode");
    CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors[o.x.index]);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors[o.out.index]);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finalize(operation, "a reduction");
    return operation;
}

CudnnDescriptor lower_reshape(const CudnnGraph::Operation& o, const Descriptors& tensors) {
    CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors[o.x.index]);
    set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors[o.out.index]);
    finalize(operation, "a reshape");
    return operation;
}

CudnnDescriptor lower(const CudnnGraph::Operation& operation, const Descriptors& tensors) {
    switch (operation.kind) {
        case CudnnGraph::Kind::pointwise: return lower_pointwise(operation, tensors);
        case CudnnGraph::Kind::matmul: return lower_matmul(operation, tensors);
        case CudnnGraph::Kind::reduce: return lower_reduce(operation, tensors);
        case CudnnGraph::Kind::reshape: return lower_reshape(operation, tensors);
    }
    return nullptr;
}

// Whether an engine configuration says that its results depend on timing.
bool is_deterministic(const CudnnDescriptor& configuration) {
    const CudnnLibrary& c = CudnnLibrary::get();
    CudnnDescriptor engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t raw = engine.get();
    std::int64_t count = 0;
    c.check(c.get_attribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                            &raw),
            "reading the engine of a configuration");
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    c.check(c.get_attribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes),
            "reading the notes of an engine");
    return std::find(notes, notes + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes + count;
}

}   // namespace

const CudnnLibrary& CudnnLibrary::get() {
    static const CudnnLibrary library = load();
    return library;
}

void CudnnLibrary::check(cudnnStatus_t status, const std::string& what) const {
    if (status == CUDNN_STATUS_SUCCESS) return;
    char reason[512] = "";
    last_error_string(reason, sizeof reason);
    throw Error(ErrorKind::no_device, text("cuDNN: ", what, " failed: ", error_string(status), " ", reason));
}

CudnnGraph::Tensor CudnnGraph::in_memory(std::int64_t id, cudnnDataType_t type, const CudnnTensorShape& shape) {
    tensors_.push_back({id, type, shape, false, false});
    return {static_cast<int>(tensors_.size()) - 1};
}
CudnnGraph::Tensor CudnnGraph::scalar(std::int64_t id) {
    tensors_.push_back({id, CUDNN_DATA_FLOAT, {{1, 1, 1, 1}, {1, 1, 1, 1}}, false, true});
    return {static_cast<int>(tensors_.size()) - 1};
}
CudnnGraph::Tensor CudnnGraph::between(cudnnDataType_t type, const CudnnTensorShape& shape) {
    tensors_.push_back({1000 + static_cast<std::int64_t>(tensors_.size()), type, shape, true, false});
    return {static_cast<int>(tensors_.size()) - 1};
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor out, Tensor x, Tensor y, Tensor condition) {
    operations_.push_back({Kind::pointwise, mode, out, x, y, condition, 0});
}
void CudnnGraph::index(Tensor out, Tensor like, int axis) {
    operations_.push_back({Kind::pointwise, CUDNN_POINTWISE_GEN_INDEX, out, like, {}, {}, axis});
}
void CudnnGraph::matmul(Tensor out, Tensor a, Tensor b) { operations_.push_back({Kind::matmul, 0, out, a, b, {}, 0}); }
void CudnnGraph::reduce(cudnnReduceTensorOp_t how, Tensor out, Tensor x) {
    operations_.push_back({Kind::reduce, how, out, x, {}, {}, 0});
}
void CudnnGraph::reshape(Tensor out, Tensor x) { operations_.push_back({Kind::reshape, 0, out, x, {}, {}, 0}); }

// What cuDNN's heuristic proposes for the graph, best first. Engines cannot simply be tried one by one: those for
// attention work only with the settings ("knobs") that the heuristic knows.
std::vector<CudnnDescriptor> CudnnGraph::configurations(const CudnnTarget& target) const {
    const CudnnLibrary& c = CudnnLibrary::get();
    Descriptors tensors, operations;
    for (const TensorInfo& tensor : tensors_) tensors.push_back(lower(tensor));
    for (const Operation& operation : operations_) operations.push_back(lower(operation, tensors));
    CudnnDescriptor graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const CudnnDescriptor& operation : operations) raw.push_back(operation.get());
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()),
        raw.data());
    if (target.handle) set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
    finalize(graph, "a graph");

    CudnnDescriptor heuristic = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (CudnnDescriptor device = device_properties(target)) set(heuristic, heuristic_device, device);
    finalize(heuristic, "a heuristic");

    std::int64_t count = 0;
    c.check(c.get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                            nullptr),
            "counting configurations");
    std::vector<CudnnDescriptor> result;
    for (std::int64_t i = 0; i < count; i++) result.push_back(create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.clear();
    for (const CudnnDescriptor& configuration : result) raw.push_back(configuration.get());
    c.check(c.get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                            &count, raw.data()),
            "reading configurations");
    result.resize(static_cast<std::size_t>(count));
    std::erase_if(result, [](const CudnnDescriptor& configuration) { return !is_deterministic(configuration); });
    return result;
}

CudnnPlan CudnnGraph::build(const CudnnTarget& target) const {
    const CudnnLibrary& c = CudnnLibrary::get();
    std::string reasons;
    for (const CudnnDescriptor& configuration : configurations(target)) {
        try {
            CudnnPlan result;
            result.plan_ = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
            set(result.plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
            if (CudnnDescriptor device = device_properties(target)) {
                set(result.plan_, plan_device, device);
            } else {
                set(result.plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
            }
            finalize(result.plan_, "a plan");
            std::int64_t bytes = 0, count = 0;
            c.check(c.get_attribute(result.plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                    &count, &bytes),
                    "reading the size of a plan's workspace");
            result.workspace_bytes_ = static_cast<std::size_t>(bytes);
            return result;
        } catch (const Error& error) {
            reasons += text("\n  ", error.message());
        }
    }
    throw Error(ErrorKind::no_device, text("cuDNN has no deterministic engine for this attention", reasons));
}

int CudnnGraph::accepted_configurations(const CudnnTarget& target) const {
    return static_cast<int>(configurations(target).size());
}

void CudnnPlan::run(cudnnHandle_t handle, const std::vector<std::pair<std::int64_t, void*>>& pointers,
                    void* workspace) const {
    const CudnnLibrary& c = CudnnLibrary::get();
    std::vector<std::int64_t> ids;
    std::vector<void*> addresses;
    for (const auto& [id, address] : pointers) {
        ids.push_back(id);
        addresses.push_back(address);
    }
    CudnnDescriptor pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const auto count = static_cast<std::int64_t>(ids.size());
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data());
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(pack, "the pointers of a plan");
    c.check(c.execute(handle, plan_.get(), pack.get()), "running a plan");
}

#endif   // USE_CUDNN
