#include "llmc/cuda_on_cpu/ptx/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

ptx_model::TensorMap ptx_model::tensor_map(const CUtensorMap& map) {
    TensorMap result;
    std::memcpy(&result, &map, sizeof(result));
    return result;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    const bool modelled = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == 4 &&
                          std::all_of(steps, steps + 4, [](cuuint32_t step) { return step == 1; }) &&
                          interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
                          promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    const bool allowed =
        reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && 2 * box[0] <= 128 && box[0] % 8 == 0 &&
        std::all_of(sizes, sizes + 4, [](cuuint64_t size) { return size > 0 && size <= std::uint64_t{1} << 32; }) &&
        std::all_of(strides, strides + 3,
                    [](cuuint64_t bytes) { return bytes % 16 == 0 && bytes < std::uint64_t{1} << 40; }) &&
        std::all_of(box, box + 4, [](cuuint32_t side) { return side > 0 && side <= 256; });
    if (!modelled || !allowed) return CUDA_ERROR_INVALID_VALUE;
    ptx_model::TensorMap made{data,
                              {sizes[0], sizes[1], sizes[2], sizes[3]},
                              {2, strides[0], strides[1], strides[2]},
                              {box[0], box[1], box[2], box[3]}};
    *map = {};
    std::memcpy(map, &made, sizeof(made));
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    const bool found = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = found ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
