// Stand-in for CUDA's <library_types.h> where there is no GPU: names of element types, with CUDA's values.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds stand-ins for machines without a GPU; nvcc must find CUDA's own headers"
#endif

enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_8I = 3,
    CUDA_R_32I = 10,
    CUDA_R_16BF = 14,
};
using cudaDataType = cudaDataType_t;
