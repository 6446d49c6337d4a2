// That cuDNN's engines accept the graphs of attention, without a GPU: for the description of an H200. Needs libcudnn and
// libcuda (a driver, or CUDA's stub of it on LD_LIBRARY_PATH as libcuda.so.1); skips with a message where they are not.

#if __has_include(<cudnn.h>)

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/kernels/attention_graph_cudnn.h"

namespace {

constexpr const char* h200 =
    R"({"version":1,"totalGlobalMem":150754820096,"cudaDeviceId":0,"smVersion":900,"deviceVer":900,"driverVer":13000,)"
    R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200"})";

bool can_ask() {
    if (!dlopen("libcuda.so.1", RTLD_NOW)) {
        MESSAGE("skipped: no libcuda.so.1");
        return false;
    }
    try {
        CudnnLibrary::get();
    } catch (const Error& error) {
        MESSAGE("skipped: " << error.message());
        return false;
    }
    return true;
}

}   // namespace

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

#endif   // __has_include(<cudnn.h>)
