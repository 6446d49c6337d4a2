// Stand-in for CUDA's <cuda.h>, the driver's interface: tensor maps, as far as this project makes them. Their names and
// values are the driver's; the program finds it by cudaGetDriverEntryPointByVersion, as with CUDA.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds stand-ins for machines without a GPU; nvcc must find CUDA's own headers"
#endif

#include <cstdint>

using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

struct CUtensorMap {
    alignas(128) cuuint64_t opaque[16];   // contents: llmc/cuda_on_cpu/ptx/tensor_map.h
};

// Makes maps of bf16 tensors in four dimensions only, unstrided, read as zeros outside. Returns
// CUDA_ERROR_INVALID_VALUE for what the driver's documentation forbids.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
