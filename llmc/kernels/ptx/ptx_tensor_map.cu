#include "llmc/kernels/ptx/ptx_tensor_map.cuh"

#include "llmc/base/check.h"
#include "llmc/base/error.h"

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Gets the function from the driver at the first call, so that the program starts without a driver.
Encode encode_function() {
    static const Encode encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        const char* name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
        const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
        const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
        if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
            cudaGetLastError();
            throw Error(ErrorKind::no_device, "the driver has no cuTensorMapEncodeTiled (CUDA 12)",
                        "Update the driver, or use another --attention than own-sm90 and --matmul-tries 1.");
        }
        return reinterpret_cast<Encode>(found);
    }();
    return encode;
}

}   // namespace

TensorMap make_tensor_map(const void* data, const std::array<std::uint64_t, 4>& sizes,
                          const std::array<std::uint64_t, 3>& strides, const std::array<std::uint32_t, 3>& box) {
    TensorMap map{};
    const cuuint64_t counts[4] = {sizes[0], sizes[1], sizes[2], sizes[3]};
    const cuuint64_t bytes[3] = {strides[0], strides[1], strides[2]};
    const cuuint32_t sides[4] = {tensor_box_width, box[0], box[1], box[2]}, steps[4] = {1, 1, 1, 1};
    const CUresult status =
        encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), counts, bytes, sides,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ENSURE(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled refuses a tensor: error ", static_cast<int>(status));
    return map;
}
