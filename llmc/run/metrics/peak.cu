#include <algorithm>

#include "llmc/base/log.h"
#include "llmc/kernels/init.cuh"
#include "llmc/model/precision.h"
#include "llmc/run/metrics/peak.h"

namespace {

struct Device {
    const char* name;            // beginning of the name in cudaDeviceProp
    double half, tf32, single;   // TFLOP/s in bf16, TF32 and plain fp32: dense, accumulated in fp32
};

// A longer name comes before a shorter one that it begins with.
constexpr Device kDevices[] = {
    {"NVIDIA GB300", 2500, 1250, 80},
    {"NVIDIA GB200", 2500, 1250, 80},
    {"NVIDIA B200", 2250, 1125, 75},
    {"NVIDIA H200", 989.4, 494.7, 66.9},
    {"NVIDIA GH200", 989.4, 494.7, 66.9},
    {"NVIDIA H100 PCIe", 756, 378, 51.2},
    {"NVIDIA H100 NVL", 835, 417, 60},
    {"NVIDIA H100", 989.4, 494.7, 66.9},
    {"NVIDIA A100", 312, 156, 19.5},
    {"NVIDIA A30", 165, 82, 10.3},
    {"NVIDIA A40", 149.7, 74.8, 37.4},
    {"NVIDIA A10", 125, 62.5, 31.2},
    {"NVIDIA L40S", 362, 183, 91.6},
    {"NVIDIA L40", 181, 90.5, 90.5},
    {"NVIDIA L4", 121, 60, 30.3},
    {"NVIDIA RTX 6000 Ada", 364.2, 182.1, 91.1},
    {"NVIDIA RTX A6000", 154.8, 77.4, 38.7},
    {"NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8},
    {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6},
    {"NVIDIA GeForce RTX 4080", 97.5, 48.7, 48.7},
    {"NVIDIA GeForce RTX 3090 Ti", 80, 40, 40},
    {"NVIDIA GeForce RTX 3090", 71, 35.6, 35.6},
    {"NVIDIA GeForce RTX 3080", 59.5, 29.8, 29.8},
};

// Returns the best rate of a few products of square matrices, large enough to be bound by arithmetic.
double measure(int size, Matmul& matmul, cudaStream_t stream) {
    Arena scratch;
    const std::int64_t elements = std::int64_t{size} * size;
    auto a = scratch.allocate<floatX>("peak/a", static_cast<std::size_t>(elements));
    auto b = scratch.allocate<floatX>("peak/b", static_cast<std::size_t>(elements));
    auto c = scratch.allocate<floatX>("peak/c", static_cast<std::size_t>(elements));
    fill_normal(a.data(), elements, 1.0f, 1, GlobalSpan{}, stream);
    fill_normal(b.data(), elements, 1.0f, 2, GlobalSpan{}, stream);
    double best = 1e30;
    for (int repeat = 0; repeat < 5; repeat++) {   // the first one warms up
        CUDA_CHECK(cudaStreamSynchronize(stream));
        double start = steady_seconds();
        matmul.forward<floatX>(c.data(), a.data(), b.data(), nullptr, MatmulShape{size, size, size}, stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        if (repeat > 0) best = std::min(best, steady_seconds() - start);
    }
    return 2.0 * size * static_cast<double>(elements) / best;
}

// Takes smaller matrices if the model has left too little memory on the device: a rough figure is better than an error.
double measure_in_the_room(int size, Matmul& matmul, cudaStream_t stream) {
    for (;; size /= 2) {
        try {
            return measure(size, matmul, stream);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device || size <= 128) throw;
        }
    }
}

}   // namespace

std::optional<double> data_sheet_flops(const std::string& device_name, DType type, bool tf32) {
    for (const Device& device : kDevices) {
        if (device_name.starts_with(device.name))
            return 1e12 * (type == DType::bf16 ? device.half : tf32 ? device.tf32 : device.single);
    }
    return std::nullopt;
}

double share_of_peak(PeakFlops& peak, double flops_per_second) {
    peak.per_second = std::max(peak.per_second, flops_per_second);
    return flops_per_second / peak.per_second;
}

PeakFlops peak_flops(const std::string& device_name, bool tf32, Matmul& matmul, cudaStream_t stream) {
    if (auto flops = data_sheet_flops(device_name, dtype_of<floatX>, tf32)) return {*flops, false};
    const bool is_gpu = device_name.starts_with("NVIDIA") || device_name.starts_with("Tesla");
    return {measure_in_the_room(is_gpu ? 8192 : 768, matmul, stream), true};
}
