// Language parts for kernels: execution-space words, vector types and dim3, as CUDA names and lays them out. Included
// by the stand-in <cuda_runtime.h> and <cuda_bf16.h>; device_functions.h has the rest.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu holds the CPU stand-in for CUDA: nvcc must not see it"
#endif

#include <cstddef>
#include <cstdint>

#define HOST_EXECUTION_MODEL 1   // kernels of this compilation run on the CPU (llmc/kernels/launch.cuh)

// A kernel is an ordinary function here. (Not `static`: templates and friends must stay what they are under nvcc.)
#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

// Static shared memory: one copy per thread of the pool, which runs one block at a time. `__thread` refuses types with
// constructors, as CUDA does. (`extern __shared__` has no such copy: use DYNAMIC_SHARED of llmc/kernels/launch.cuh.)
#define __shared__ static __thread

#define HOST_VECTOR_TYPES(type, name, align2, align4)                                     \
    struct name##1 {                                                                      \
        type x;                                                                           \
    };                                                                                    \
    struct alignas(align2) name##2 {                                                      \
        type x, y;                                                                        \
    };                                                                                    \
    struct name##3 {                                                                      \
        type x, y, z;                                                                     \
    };                                                                                    \
    struct alignas(align4) name##4 {                                                      \
        type x, y, z, w;                                                                  \
    };                                                                                    \
    constexpr inline name##1 make_##name##1(type x) { return {x}; }                       \
    constexpr inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
    constexpr inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    constexpr inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

HOST_VECTOR_TYPES(signed char, char, 2, 4)
HOST_VECTOR_TYPES(unsigned char, uchar, 2, 4)
HOST_VECTOR_TYPES(short, short, 4, 8)
HOST_VECTOR_TYPES(unsigned short, ushort, 4, 8)
HOST_VECTOR_TYPES(int, int, 8, 16)
HOST_VECTOR_TYPES(unsigned int, uint, 8, 16)
HOST_VECTOR_TYPES(long long int, longlong, 16, 16)
HOST_VECTOR_TYPES(unsigned long long int, ulonglong, 16, 16)
HOST_VECTOR_TYPES(float, float, 8, 16)
HOST_VECTOR_TYPES(double, double, 16, 16)
#undef HOST_VECTOR_TYPES

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
