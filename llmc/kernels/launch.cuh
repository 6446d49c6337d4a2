// Launches kernels: launch(kernel<float>, Launch{grid, block, shared_bytes, stream}, arguments...).
//
// All kernels are started this way, on a GPU and on a CPU (never by <<<>>>). Arguments are converted to the kernel's
// parameter types and copied at the call, as CUDA does. Limits are checked first, so that a launch that cannot work
// throws an Error naming the kernel, the caller's file and line, and the limit. Errors of a running kernel show at a
// later synchronisation, as on a GPU.
//
// Launch can also declare what the kernel reads and writes. The CPU build's checks use it (races between streams), and
// operation_timer.h takes from it the bytes that the kernel moves by formula:
//     launch(add<float>, Launch{blocks, 256, 0, stream}.writes(out, n * 4).reads(in, n * 4), out, in, n);
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef HOST_EXECUTION_MODEL   // defined by the stand-in <cuda_runtime.h>
#include "llmc/cuda_on_cpu/exec/launch.h"
#endif

// Returns the number of blocks (or anything) of `size` that cover `count`.
template <class T>
__host__ __device__ constexpr T ceil_div(T count, std::type_identity_t<T> size) {
    return (count + size - 1) / size;
}

class Launch {
public:
    // Grid and block as on CUDA: blocks per grid, threads per block; dynamic shared memory in bytes.
    Launch(dim3 grid, dim3 block, std::size_t shared_bytes = 0, cudaStream_t stream = nullptr,
           const char* file = __builtin_FILE(), int line = __builtin_LINE())
        : grid_(grid), block_(block), shared_bytes_(shared_bytes), stream_(stream), file_(file), line_(line) {}

    // Declares that the kernel reads (writes) `bytes` from `pointer` on. Both may be declared. Null or zero bytes:
    // nothing.
    Launch& reads(const void* pointer, std::size_t bytes) { return declare(pointer, bytes, bytes, false); }
    Launch& writes(const void* pointer, std::size_t bytes) { return declare(pointer, bytes, bytes, true); }
    // Declares the same of `span` bytes with gaps, in which it moves `bytes`.
    Launch& reads(const void* pointer, std::size_t span, std::size_t bytes) {
        return declare(pointer, span, bytes, false);
    }
    Launch& writes(const void* pointer, std::size_t span, std::size_t bytes) {
        return declare(pointer, span, bytes, true);
    }
    // Declares the FLOPs of a kernel that multiplies matrices, from which a plan takes its time
    // (llmc/plan/step_time.h).
    Launch& multiplies(double flops) {
        flops_ = flops;
        return *this;
    }

    dim3 grid() const { return grid_; }
    dim3 block() const { return block_; }
    std::size_t shared_bytes() const { return shared_bytes_; }
    cudaStream_t stream() const { return stream_; }
    const char* file() const { return file_; }
    int line() const { return line_; }
    std::size_t bytes() const { return bytes_; }   // declared, reads and writes together
    double flops() const { return flops_; }        // declared

#ifdef HOST_EXECUTION_MODEL
    const std::vector<host::Access>& accesses() const { return accesses_; }
#endif

private:
    Launch& declare(const void* pointer, [[maybe_unused]] std::size_t span, std::size_t bytes,
                    [[maybe_unused]] bool write) {
        if (pointer) bytes_ += bytes;
#ifdef HOST_EXECUTION_MODEL
        if (pointer && span > 0) accesses_.push_back({pointer, span, write});
#endif
        return *this;
    }

    dim3 grid_, block_;
    std::size_t shared_bytes_;
    cudaStream_t stream_;
    const char* file_;
    int line_;
    std::size_t bytes_ = 0;
    double flops_ = 0;
#ifdef HOST_EXECUTION_MODEL
    std::vector<host::Access> accesses_;
#endif
};

// Throws the Error of a launch that was refused: cudaErrorInvalidConfiguration for dimensions, cudaErrorInvalidValue
// for too much shared memory, as CUDA returns them. `kernel` is the kernel's address.
void check_launch(const Launch& how, const void* kernel);

// Throws if `status` is an error, naming the launch.
void check_launched(cudaError_t status, const Launch& how, const void* kernel);

#ifndef HOST_EXECUTION_MODEL   // for a CPU: llmc/cuda_on_cpu/exec/launch.h

// Puts a launch that has been checked into its stream.
template <class... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...), const Launch& how,
                         std::type_identity_t<Parameters>... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = how.grid();
    config.blockDim = how.block();
    config.dynamicSmemBytes = how.shared_bytes();
    config.stream = how.stream();
    void* pointers[sizeof...(Parameters) + 1] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
}

// Mark device functions that contain a collective: CALLER is the last parameter of the declaration and CALLER_HERE the
// last argument of the collective inside. A CPU then reports the place where the function is called as that of the
// collective.
#define CALLER
#define CALLER_HERE

// Returns the threads of a block for a kernel that works with any number, because it deals a block's work out in steps
// of blockDim: `threads`; on a CPU one.
constexpr bool loop_threads_may_be_one = false;
inline unsigned loop_threads(unsigned threads) { return threads; }

// Declares `name` as a pointer to the block's dynamic shared memory, whose size is the launch's shared_bytes. Aligned
// to 1,024 bytes: the bulk copies and their swizzles need it, and the base always is.
#define DYNAMIC_SHARED(type, name)                                           \
    extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[]; \
    type* const name = reinterpret_cast<type*>(dynamic_shared_memory)

// Returns the value of lane (own xor distance), for any type of 4 or 8 bytes.
template <class T>
__device__ __forceinline__ T shuffle_xor(const T& value, int distance) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    if constexpr (std::is_arithmetic_v<T>) {
        return __shfl_xor_sync(0xffffffffu, value, distance);
    } else {   // a pair of floats
        T result;
        const float* from = reinterpret_cast<const float*>(&value);
        float* to = reinterpret_cast<float*>(&result);
#pragma unroll
        for (unsigned i = 0; i < sizeof(T) / 4; i++) to[i] = __shfl_xor_sync(0xffffffffu, from[i], distance);
        return result;
    }
}

// Computes v_i = op(v_i, v_{i xor 16}), then 8, 4, 2, 1: every lane of a full warp gets op over all 32, in that order.
// op must be commutative.
template <class T, class Op>
__device__ __forceinline__ T warp_butterfly(T value, Op op) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value = op(value, shuffle_xor(value, distance));
    return value;
}

constexpr bool block_butterfly_exists = false;     // a whole block's butterfly at once
constexpr bool vector_conversions_exist = false;   // converts Vec8 of vec.cuh by the host's instructions

// Returns the larger of two, in one instruction.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

#endif

template <class... Parameters>
void launch(void (*kernel)(Parameters...), const Launch& how, std::type_identity_t<Parameters>... arguments) {
    static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel parameters are copied as bytes");
    const void* address = reinterpret_cast<const void*>(kernel);
    check_launch(how, address);
    check_launched(start_kernel(kernel, how, arguments...), how, address);
}
