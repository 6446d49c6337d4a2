// The graphs of attention, without a GPU: that their operations, carried out one by one in double precision, are
// attention; and that cuDNN's engines accept them for the description of an H200. The latter needs libcudnn and libcuda
// (a driver, or CUDA's stub of it on LD_LIBRARY_PATH as libcuda.so.1) and skips with a message where they are not.

#ifdef USE_CUDNN

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/attention/attention_graph_cudnn.h"
#include "llmc/kernels/attention/attention_reference_test.h"

namespace {

constexpr const char* h200 =
    R"({"version":1,"totalGlobalMem":150754820096,"cudaDeviceId":0,"smVersion":900,"deviceVer":900,"driverVer":13000,)"
    R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200",)"
    R"("smCountOrigin":0,"oversizedSharedMemoryPerBlock":0,"memoryBusWidth":6144})";

// Carries out a graph's operations in double precision. Memory tensors are views, by their strides, of the buffers
// given by id; a tensor between operations has a buffer of its own and is addressed without gaps, whatever its strides
// say.
class Interpreter {
public:
    using Index = std::array<std::int64_t, 4>;
    std::map<std::int64_t, std::vector<double>> memory;

    void run(const CudnnGraph& graph) {
        graph_ = &graph;
        for (const CudnnGraph::Operation& o : graph.operations()) {
            const CudnnTensorShape& shape = info(o.out).shape;
            for_each(shape.sizes, [&](const Index& i) { at(o.out, i) = value(o, i); });
        }
    }

private:
    template <class Visit>
    static void for_each(const std::array<std::int64_t, 4>& sizes, Visit visit) {
        Index i;
        for (i[0] = 0; i[0] < sizes[0]; i[0]++)
            for (i[1] = 0; i[1] < sizes[1]; i[1]++)
                for (i[2] = 0; i[2] < sizes[2]; i[2]++)
                    for (i[3] = 0; i[3] < sizes[3]; i[3]++) visit(i);
    }
    const CudnnGraph::TensorInfo& info(CudnnGraph::Tensor t) const {
        return graph_->tensors()[static_cast<std::size_t>(t.index)];
    }

    // An element; sizes of 1 are repeated.
    double& at(CudnnGraph::Tensor t, Index i) {
        const CudnnGraph::TensorInfo& tensor = info(t);
        std::int64_t place = 0, dense = 0;
        for (std::size_t axis = 0; axis < 4; axis++) {
            std::int64_t index = tensor.shape.sizes[axis] == 1 ? 0 : i[axis];
            place += index * tensor.shape.strides[axis];
            dense = dense * tensor.shape.sizes[axis] + index;
        }
        std::vector<double>& buffer = memory[tensor.id];
        auto position = static_cast<std::size_t>(tensor.is_virtual ? dense : place);
        if (buffer.size() <= position) buffer.resize(position + 1, std::nan(""));
        return buffer[position];
    }

    double value(const CudnnGraph::Operation& o, const Index& i) {
        switch (o.kind) {
            case CudnnGraph::Kind::pointwise: return pointwise(o, i);
            case CudnnGraph::Kind::matmul: {
                double sum = 0;
                for (std::int64_t k = 0; k < info(o.x).shape.sizes[3]; k++) {
                    sum += at(o.x, {i[0], i[1], i[2], k}) * at(o.y, {i[0], i[1], k, i[3]});
                }
                return sum;
            }
            case CudnnGraph::Kind::reduce: {   // over the last axis
                double result = o.mode == CUDNN_REDUCE_TENSOR_MAX ? -std::numeric_limits<double>::infinity() : 0;
                for (std::int64_t k = 0; k < info(o.x).shape.sizes[3]; k++) {
                    double x = at(o.x, {i[0], i[1], i[2], k});
                    result = o.mode == CUDNN_REDUCE_TENSOR_MAX ? std::max(result, x) : result + x;
                }
                return result;
            }
            case CudnnGraph::Kind::reshape: return at(o.x, {i[0], i[1], i[3], i[2]});   // all of ours transpose
        }
        return std::nan("");
    }

    double pointwise(const CudnnGraph::Operation& o, const Index& i) {
        if (o.mode == CUDNN_POINTWISE_GEN_INDEX) return static_cast<double>(i[static_cast<std::size_t>(o.axis)]);
        double x = at(o.x, i), y = o.y ? at(o.y, i) : 0;
        switch (o.mode) {
            case CUDNN_POINTWISE_ADD: return x + y;
            case CUDNN_POINTWISE_SUB: return x - y;
            case CUDNN_POINTWISE_MUL: return x * y;
            case CUDNN_POINTWISE_DIV: return x / y;
            case CUDNN_POINTWISE_EXP: return std::exp(x);
            case CUDNN_POINTWISE_LOG: return std::log(x);
            case CUDNN_POINTWISE_CMP_GE: return x >= y ? 1 : 0;
            case CUDNN_POINTWISE_BINARY_SELECT: return at(o.condition, i) != 0 ? x : y;
        }
        return std::nan("");
    }

    const CudnnGraph* graph_ = nullptr;
};

std::vector<double> random_numbers(std::size_t count, std::uint64_t key) {
    std::vector<double> result;
    for (std::size_t i = 0; i < count; i++) result.push_back(normal(key, i));
    return result;
}

// Part `part` of (B, T, 3, NH, HS), as (B, T, NH, HS).
std::vector<double> part_of(const std::vector<double>& packed, int part, std::size_t row) {
    std::vector<double> result;
    for (std::size_t t = 0; t * 3 * row < packed.size(); t++) {
        auto first = packed.begin() + static_cast<std::ptrdiff_t>((t * 3 + static_cast<std::size_t>(part)) * row);
        result.insert(result.end(), first, first + static_cast<std::ptrdiff_t>(row));
    }
    return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);   // NaN as well
    }
    return largest;
}

// Throws Error where this version of cuDNN wants another description of a device.
void describe_h200() {
#if CUDNN_VERSION >= 90800
    const CudnnLibrary& c = CudnnLibrary::get();
    cudnnBackendDescriptor_t raw = nullptr;
    c.check(c.create_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &raw), "creating a descriptor");
    const CudnnDescriptor device(raw, [&c](void* d) { c.destroy_descriptor(d); });
    const auto size = static_cast<std::int64_t>(std::strlen(h200) + 1);
    c.check(c.set_attribute(raw, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size, h200),
            "reading the description of an H200");
    c.check(c.finalize(raw), "finishing the description of an H200");
#else
    throw Error(ErrorKind::no_device, "built with a cuDNN before 9.8, which knows no descriptions of devices");
#endif
}

bool can_ask() {
    if (!dlopen("libcuda.so.1", RTLD_NOW)) {
        MESSAGE("skipped: no libcuda.so.1");
        return false;
    }
    try {
        describe_h200();
    } catch (const Error& error) {
        MESSAGE("skipped: " << error.message());
        return false;
    }
    return true;
}

}   // namespace

TEST_CASE("cudnn: the operations of the graphs, done in double precision, are attention and its gradients") {
    for (bool causal : {true, false}) {
        CAPTURE(causal);
        const AttentionShape shape = self_attention_shape(2, 9, 3, 8, causal);
        const std::size_t row = 3 * 8, tokens = 2 * 9;
        const std::vector<double> qkv = random_numbers(tokens * 3 * row, 1), dout = random_numbers(tokens * row, 2);
        const AttentionReference expected =
            reference_attention(shape, part_of(qkv, 0, row), part_of(qkv, 1, row), part_of(qkv, 2, row), dout);
        auto from = [&](int part) {
            return std::vector<double>(qkv.begin() + part * static_cast<std::ptrdiff_t>(row), qkv.end());
        };
        Interpreter device;
        device.memory[AttentionTensor::q] = from(0);
        device.memory[AttentionTensor::k] = from(1);
        device.memory[AttentionTensor::v] = from(2);
        device.memory[AttentionTensor::scale] = {shape.scale};
        device.memory[AttentionTensor::hidden] = {-std::numeric_limits<double>::infinity()};
        device.memory[AttentionTensor::one] = {1.0};
        device.memory[AttentionTensor::dout] = dout;
        const AttentionLayout layout = packed_layout(shape);
        device.run(forward_attention_graph(layout));
        CHECK(largest_difference(device.memory[AttentionTensor::out], expected.out) < 1e-12);
        CHECK(largest_difference(device.memory[AttentionTensor::lse], expected.lse) < 1e-12);
        device.run(backward_attention_graph(layout));
        auto packed = [&](AttentionTensor::Id id) {   // dq, dk and dv are written with the strides of (B, T, 3, NH, HS)
            std::vector<double> result = device.memory[id];
            result.resize(tokens * 3 * row);
            return part_of(result, 0, row);
        };
        CHECK(largest_difference(packed(AttentionTensor::dq), expected.dq) < 1e-12);
        CHECK(largest_difference(packed(AttentionTensor::dk), expected.dk) < 1e-12);
        CHECK(largest_difference(packed(AttentionTensor::dv), expected.dv) < 1e-12);
    }
}

TEST_CASE("cudnn: calls on the program's own tensors have the layouts that were asked about, so plans are built once") {
    const AttentionShape shape = self_attention_shape(2, 9, 3, 8);
    bf16* qkv = nullptr;
    auto part = [&](int p) { return packed_heads(qkv, p, 9, 3, 8); };
    const HeadsView<bf16> alone = contiguous_heads<bf16>(nullptr, 9, 3, 8);
    const AttentionForward<bf16> forward{alone, nullptr, part(0), part(1), part(2), shape};
    const AttentionBackward<bf16> backward{part(0), part(1), part(2), nullptr, alone, alone,
                                           nullptr, part(0), part(1), part(2), shape};
    CHECK(layout_of(forward) == forward_part(packed_layout(shape)));
    CHECK(layout_of(backward) == packed_layout(shape));
    CHECK(layout_of(forward) != layout_of(backward));
}

TEST_CASE("cudnn: what it is reported to do wrong is not asked for") {
    auto full = [](int Tk) { return self_attention_shape(2, Tk, 3, 64, false); };
    CHECK(unsupported_by_cudnn(full(1024), true, 90) == "");
    CHECK(unsupported_by_cudnn(full(64), true, 90).find("NaN") != std::string::npos);
    CHECK(unsupported_by_cudnn(full(192), true, 90).find("Tk=192") != std::string::npos);
    CHECK(unsupported_by_cudnn(full(192), false, 90) == "");   // forward is well
    CHECK(unsupported_by_cudnn(full(192), true, 100) == "");
    CHECK(unsupported_by_cudnn(full(96), true, 90) == "");
    CHECK(unsupported_by_cudnn(self_attention_shape(2, 192, 3, 64), true, 90) == "");   // causal

    CHECK(unsupported_by_cudnn(self_attention_shape(1, 1, 1, 64), false, 80).find("crash") != std::string::npos);
    CHECK(unsupported_by_cudnn(self_attention_shape(1, 1, 2, 64), false, 80) == "");
    CHECK(unsupported_by_cudnn(self_attention_shape(1, 2, 1, 64), false, 80) == "");
    CHECK(unsupported_by_cudnn(self_attention_shape(2, 1, 1, 64), false, 80) == "");
    CHECK(unsupported_by_cudnn(self_attention_shape(2, 64, 3, 136), true, 80).find("head size") != std::string::npos);
    AttentionShape later = self_attention_shape(2, 64, 3, 64);
    later.q0 = 32;
    CHECK(unsupported_by_cudnn(later, true, 80).find("positions") != std::string::npos);
}

TEST_CASE("cudnn: engines accept attention forward and backward, causal and full, for an H200") {
    if (!can_ask()) return;
    for (int HS : {64, 80, 96, 128}) {
        for (int T : {64, 1000, 1024}) {
            for (bool causal : {true, false}) {
                CAPTURE(HS);
                CAPTURE(T);
                CAPTURE(causal);
                AttentionLayout layout = packed_layout(self_attention_shape(2, T, 12, HS, causal));
                CHECK(forward_attention_graph(layout).accepted_configurations({nullptr, h200}) > 0);
                CHECK(backward_attention_graph(layout).accepted_configurations({nullptr, h200}) > 0);
            }
        }
    }
}

#endif   // USE_CUDNN
