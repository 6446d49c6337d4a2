// Starts kernels on a CPU, and holds the parts of llmc/kernels/launch.cuh that differ from a GPU's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/exec/grid.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

// A kernel and its arguments; runs one thread after the other for the scheduler.
template <class... Parameters>
struct KernelCall {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;

    HOST_NO_ADDRESS_SANITIZER static void run(void* self) {
        KernelCall& call = *static_cast<KernelCall*>(self);
        Block& block = *Block::current();
        do {
            std::apply(call.kernel, call.arguments);
        } while (block.next_thread());
    }
};

}   // namespace host

// Puts the launch `how` (a Launch of launch.cuh) into its stream; the arguments are copied.
template <class How, class... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...), const How& how, std::type_identity_t<Parameters>... arguments) {
    using Call = host::KernelCall<Parameters...>;
    Call call{kernel, std::tuple<Parameters...>(arguments...)};
    const std::string& name = host::kernel_name(reinterpret_cast<const void*>(kernel));
    host::Grid grid{name, how.file(), how.line(), how.grid(), how.block(), how.shared_bytes(), how.accesses(), {}};
    host::Operation operation;
    operation.name = name;
    operation.file = how.file();
    operation.line = how.line();
    operation.accesses = how.accesses();
    operation.work.flops = how.flops();
    operation.work.bytes = static_cast<double>(how.bytes());
    operation.step = [call, grid]() mutable {
        grid.task = {Call::run, &call};
        host::GridFault fault = host::run_grid(grid);
        if (fault.error != cudaSuccess) host::report_fault(fault.error, std::move(fault.message));
        return true;
    };
    return host::enqueue(how.stream(), std::move(operation));
}

// Pass on the place where a function with a collective inside was called: faults name the kernel's line, and threads
// that call the function in different branches do not meet.
#define CALLER , const char *site_file = __builtin_FILE(), int site_line = __builtin_LINE()
#define CALLER_HERE , site_file, site_line

// Returns one, because one thread's loop over all of a block's work is faster than many threads with a share each,
// above all if they meet. With the check `shape` (as in tests) returns the GPU's number, so that tests run the same
// shape.
constexpr bool loop_threads_may_be_one = true;
inline unsigned loop_threads(unsigned threads) { return host::checks().gpu_shape ? threads : 1; }

#define DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(host::dynamic_shared_memory)

// Convert eight elements of one type to another (Vec8 of vec.cuh), by vector instructions.
constexpr bool vector_conversions_exist = true;
template <class Floats, class Halves>
__forceinline__ Floats widened8(const Halves& from) {
    Floats to;
    host::bf16_bits_to_float8(&from, &to.values[0]);
    return to;
}
template <class Halves, class Floats>
__forceinline__ Halves narrowed8(const Floats& from) {
    Halves to;
    host::float_to_bf16_bits8(&from.values[0], &to);
    return to;
}

// Returns the larger of two, in one instruction; either one if one is NaN.
__forceinline__ float larger(float a, float b) { return a > b ? a : b; }

namespace host {

// Returns the value that every lane of a warp gets from v_i = op(v_i, v_{i xor d}) for d = 16, 8, 4, 2, 1, with op
// commutative.
template <class T, class Op>
inline T butterfly_of(T (&v)[warp_lanes], Op op) {
    for (unsigned distance = warp_lanes / 2; distance > 0; distance /= 2) {
        for (unsigned i = 0; i < distance; i++) v[i] = op(v[i], v[i + distance]);
    }
    return v[0];
}
template <class T, class Op>
inline T butterfly_of_slots(const std::uint64_t (&slots)[warp_lanes], Op op) {
    T v[warp_lanes];
    for (unsigned i = 0; i < warp_lanes; i++) v[i] = from_slot<T>(slots[i]);
    return butterfly_of(v, op);
}

}   // namespace host

// Computes v_i = op(v_i, v_{i xor 16}), then 8, 4, 2, 1: every lane of a full warp gets op over all 32, in that order.
// One rendezvous instead of five; the same bits, because op is commutative.
template <class T, class Op>
inline T warp_butterfly(T value, Op, HOST_SITE) {
    static_assert(std::is_empty_v<Op> && std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    host::Block& block = *host::Block::current();
    host::Warp& warp = block.warp();
    unsigned lane = block.lane();
    warp.in[lane] = host::to_slot(value);
    block.rendezvous(0xffffffffu, {site_file, site_line}, [](host::Warp& all, std::uint32_t participants) {
        if (participants != 0xffffffffu) host::fail_partial_warp();
        std::uint64_t result = host::to_slot(host::butterfly_of_slots<T>(all.in, Op()));
        for (unsigned i = 0; i < host::warp_lanes; i++) all.out[i] = result;
    });
    return host::from_slot<T>(warp.out[lane]);
}

// Returns the result of a block in whole warps: every warp's butterfly, then one over the warps' results, with op's
// neutral element for the warps up to 32 that do not exist. The last thread to arrive computes it for all, so each
// thread waits once; the bits are those of the shuffles and barriers that a GPU needs (block_reduce_by_warps in
// reduce.cuh).
constexpr bool block_butterfly_exists = true;
template <class T, class Op>
inline T block_butterfly(T value, Op, HOST_SITE) {
    static_assert(std::is_empty_v<Op> && std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    host::Block& block = *host::Block::current();
    block.warp().in[block.lane()] = host::to_slot(value);
    return host::from_slot<T>(block.meet({site_file, site_line}, [](const host::Warp* warps, unsigned count) {
        T results[host::warp_lanes];
        for (unsigned w = 0; w < host::warp_lanes; w++) {
            results[w] = w < count ? host::butterfly_of_slots<T>(warps[w].in, Op()) : Op::template neutral<T>();
        }
        return host::to_slot(count == 1 ? results[0] : host::butterfly_of(results, Op()));
    }));
}
