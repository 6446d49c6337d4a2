// Compares every wrapped instruction of sm_90a (ptx_hopper.cuh) with a plain computation on the host, as ptx_checks.cuh
// does for those of all devices.
#pragma once

#include <string>
#include <vector>

#include "llmc/kernels/ptx/ptx_checks.cuh"
#include "llmc/kernels/ptx/ptx_hopper.cuh"

namespace ptx_checks {

// Returns the index of the element at (row, column) in a panel.
__host__ __device__ inline int in_panel(int row, int column) {
    return row * 64 + (column / 8 ^ row % 8) * 8 + column % 8;
}

// Returns a small whole number, exact in bf16.
inline float small_number(std::size_t i) { return static_cast<float>(static_cast<int>(i * 37 % 251) - 125); }
inline std::uint16_t bf16_bits(float value) { return bits_of(static_cast<bf16>(value)); }

// A tensor (2, 20, 3, 72), 72 channels a row, the first three dimensions with gaps between them. Element (b, t, h, c)
// is small_number of its index in memory
struct CheckedTensor {
    static constexpr int channels = 72, tokens = 20, heads = 3, batches = 2;
    static constexpr int token = 240, head = 80, batch = 4880, count = batches * batch;
    static constexpr int box_tokens = 16;
    DeviceBuffer<std::uint16_t> buffer;
    TensorMap map;

    CheckedTensor(Arena& arena, cudaStream_t stream) : buffer(arena.allocate<std::uint16_t>("check/tensor", count)) {
        std::vector<std::uint16_t> bits(count);
        for (std::size_t i = 0; i < bits.size(); i++) bits[i] = bf16_bits(small_number(i));
        buffer.upload(bits, stream);
        map = make_tensor_map(buffer.data(), {channels, heads, tokens, batches}, {2 * head, 2 * token, 2 * batch},
                              {1, box_tokens, 1});
    }
    static bool inside(int channel, int t) { return channel >= 0 && channel < channels && t >= 0 && t < tokens; }
    static int place(int channel, int t, int h, int b) { return b * batch + h * head + t * token + channel; }
};

// Corners of the tried boxes: first channel and token. Boxes that are loaded lie outside in every direction, those that
// are stored only beyond the end.
inline constexpr int box_corners[][2] = {{0, 0}, {64, 12}, {8, -5}, {-16, 3}};
inline constexpr int stored_corners[][2] = {{0, 0}, {64, 12}, {8, 3}};
inline constexpr int box_elements = CheckedTensor::box_tokens * 64;

template <class T>
__global__ void load_box(T* box, const __grid_constant__ TensorMap map, int channel, int token) {
    if constexpr (hopper_instructions) {
        DYNAMIC_SHARED(T, tile);
        const SharedAddress barrier = shared_address(tile + box_elements);
        if (threadIdx.x == 0) {
            mbarrier_init(barrier, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(barrier, box_elements * static_cast<int>(sizeof(T)));
            tma_load(shared_address(tile), map, barrier, channel, 1, token, 1);
        }
        __syncthreads();
        mbarrier_wait(barrier, 0);
        for (int i = threadIdx.x; i < box_elements; i += 32) box[i] = tile[in_panel(i / 64, i % 64)];
    }
}

inline std::string tma_load(Arena& arena, cudaStream_t stream) {
    const CheckedTensor tensor(arena, stream);
    const auto box = arena.allocate<std::uint16_t>("check/box", box_elements);
    for (const auto& [channel, token] : box_corners) {
        box.upload(std::vector<std::uint16_t>(box_elements, 1), stream);
        launch(load_box<std::uint16_t>, Launch(1, 32, 2 * box_elements + 1024, stream), box.data(), tensor.map, channel,
               token);
        const int c0 = channel, t0 = token;
        std::string difference = first_difference(
            box.download(stream),
            [&](std::size_t i) {
                const int c = c0 + static_cast<int>(i % 64), t = t0 + static_cast<int>(i / 64);
                if (!CheckedTensor::inside(c, t)) return 0.0;
                const auto at = static_cast<std::size_t>(CheckedTensor::place(c, t, 1, 1));
                return static_cast<double>(bf16_bits(small_number(at)));
            },
            exactly);
        if (!difference.empty()) return difference;
    }
    return "";
}

// Stores a box whose element i is i.
template <class T>
__global__ void store_box(T*, const __grid_constant__ TensorMap map, int channel, int token) {
    if constexpr (hopper_instructions) {
        DYNAMIC_SHARED(T, tile);
        for (int i = threadIdx.x; i < box_elements; i += 32) tile[in_panel(i / 64, i % 64)] = static_cast<T>(i);
        fence_proxy_async(shared_address(tile), box_elements * static_cast<int>(sizeof(T)));
        __syncthreads();
        if (threadIdx.x != 0) return;
        tma_store(map, shared_address(tile), channel, 1, token, 1);
        tma_store_commit();
        tma_store_wait();
    }
}

inline std::string tma_store(Arena& arena, cudaStream_t stream) {
    for (const auto& [channel, token] : stored_corners) {
        const CheckedTensor tensor(arena, stream);
        launch(store_box<std::uint16_t>, Launch(1, 32, 2 * box_elements, stream), nullptr, tensor.map, channel, token);
        std::vector<double> expected(CheckedTensor::count);
        for (std::size_t i = 0; i < expected.size(); i++) expected[i] = bf16_bits(small_number(i));
        for (int i = 0; i < box_elements; i++) {
            const int c = channel + i % 64, t = token + i / 64;
            if (CheckedTensor::inside(c, t)) expected[static_cast<std::size_t>(CheckedTensor::place(c, t, 1, 1))] = i;
        }
        std::string difference = first_difference(
            tensor.buffer.download(stream), [&](std::size_t i) { return expected[i]; }, exactly);
        if (!difference.empty()) return difference;
    }
    return "";
}

// Sums every column of a box, box after box of a head's tokens: one warp copies into two tiles in turn, the other adds.
inline constexpr int ring_boxes = 7, ring_rows = 8, ring_elements = ring_rows * 64;
template <class T>
__global__ void sum_boxes(float* sums, const __grid_constant__ TensorMap map) {
    if constexpr (hopper_instructions) {
        DYNAMIC_SHARED(T, tiles);
        const SharedAddress first = shared_address(tiles), barriers = shared_address(tiles + 2 * ring_elements);
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < 2; stage++) {
                mbarrier_init(barriers + 8 * stage, 1);
                mbarrier_init(barriers + 16 + 8 * stage, 32);
            }
            mbarrier_init_fence();
        }
        __syncthreads();
        for (int box = 0; box < ring_boxes; box++) {
            const int stage = box % 2, round = box / 2 % 2;
            const SharedAddress full = barriers + 8 * stage, free = barriers + 16 + 8 * stage;
            if (threadIdx.x == 0) {
                mbarrier_wait(free, round ^ 1);
                mbarrier_arrive_expect(full, ring_elements * 2);
                tma_load(first + stage * ring_elements * 2, map, full, 0, box * ring_rows, 0, 0);
            }
            if (threadIdx.x < 32) continue;
            mbarrier_wait(full, round);
            for (int column = threadIdx.x - 32; column < 64; column += 32) {
                float sum = 0;
                for (int row = 0; row < ring_rows; row++)
                    sum += __uint_as_float(std::uint32_t{tiles[stage * ring_elements + in_panel(row, column)]} << 16);
                sums[box * 64 + column] = sum;
            }
            mbarrier_arrive(free);
        }
    }
}

inline std::string mbarriers(Arena& arena, cudaStream_t stream) {
    const auto tokens = arena.allocate<std::uint16_t>("check/tokens", ring_boxes * ring_elements);
    std::vector<std::uint16_t> bits(tokens.size());
    for (std::size_t i = 0; i < bits.size(); i++) bits[i] = bf16_bits(small_number(i));
    tokens.upload(bits, stream);
    const auto sums = arena.allocate<float>("check/sums", ring_boxes * 64);
    const TensorMap map =
        make_tensor_map(tokens.data(), {64, ring_boxes * ring_rows, 1, 1}, {128, 128, 128}, {ring_rows, 1, 1});
    launch(sum_boxes<std::uint16_t>, Launch(1, 64, 4 * ring_elements + 1024, stream), sums.data(), map);
    return first_difference(
        sums.download(stream),
        [](std::size_t i) {
            double sum = 0;
            for (std::size_t row = 0; row < ring_rows; row++)
                sum += static_cast<double>(small_number((i / 64 * ring_rows + row) * 64 + i % 64));
            return sum;
        },
        exactly);
}

// Computes result (64, N) = a (64, 32) b (32, N), row-major in memory, by two products. In shared memory the operands
// are stored as they are or transposed; `a`, if not transposed, starts at column 16 of its panel.
template <bool A_REGISTERS, bool A_TRANSPOSED, bool B_TRANSPOSED, int N, class T>
__global__ void multiply_group(float* result, const T* matrices, int) {
    if constexpr (hopper_instructions) {
        DYNAMIC_SHARED(T, shared);
        const T *a = matrices, *b = matrices + 64 * 32;
        constexpr int panel = 64 * 64, b_panel = B_TRANSPOSED ? 32 * 64 : N * 64,
                      b_panels = B_TRANSPOSED ? (N + 63) / 64 : 1;
        constexpr int b_column = B_TRANSPOSED && N == 32 ? 32 : 0;   // the second half of a panel
        T *a_tile = shared, *b_tile = shared + panel;
        const int thread = threadIdx.x;
        for (int i = thread; i < 64 * 32; i += 128) {
            const int m = i / 32, k = i % 32;
            a_tile[A_TRANSPOSED ? in_panel(k, m) : in_panel(m, 16 + k)] = a[i];
        }
        for (int i = thread; i < 32 * N; i += 128) {
            const int k = i / N, n = i % N;
            b_tile[B_TRANSPOSED ? n / 64 * b_panel + in_panel(k, b_column + n % 64) : in_panel(n, k)] = b[i];
        }
        fence_proxy_async(shared_address(shared), 2 * (panel + b_panels * b_panel));
        __syncthreads();
        const int lane = thread % 32, g = thread / 32 * 16 + lane / 4, t = lane % 4 * 2;
        std::uint32_t left[2][4];
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const T* from = a + (g + e % 2 * 8) * 32 + step * 16 + t + e / 2 * 8;
                left[step][e] = std::uint32_t{from[0]} | std::uint32_t{from[1]} << 16;
            }
        float d[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] = 1e9f;   // overwritten by the first product
        wgmma_fence(d, left);
        const SharedAddress b_first = shared_address(b_tile) + 2 * b_column,
                            a_first = shared_address(a_tile) + (A_TRANSPOSED ? 0 : 32);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const std::uint64_t right = wgmma_operand(b_first + step * (B_TRANSPOSED ? 2048 : 32), 2 * b_panel);
            if constexpr (A_REGISTERS) {
                wgmma<B_TRANSPOSED>(d, left[step], right, step > 0);
            } else {
                wgmma<A_TRANSPOSED, B_TRANSPOSED>(d, wgmma_operand(a_first + step * (A_TRANSPOSED ? 2048 : 32)), right,
                                                  step > 0);
            }
        }
        wgmma_commit();
        wgmma_wait<0>(d, left);
#pragma unroll
        for (int i = 0; i < N / 2; i++) result[(g + i / 2 % 2 * 8) * N + i / 4 * 8 + t + i % 2] = d[i];
    }
}

template <bool A_REGISTERS, bool A_TRANSPOSED, bool B_TRANSPOSED, int N>
std::string wgmma_of(Arena& arena, cudaStream_t stream) {
    std::vector<std::uint16_t> bits;
    std::vector<double> values;
    for (int i = 0; i < 64 * 32 + 32 * N; i++) {
        const bf16 value = static_cast<bf16>(normal(3, i));
        bits.push_back(bits_of(value));
        values.push_back(static_cast<double>(static_cast<float>(value)));
    }
    const auto matrices = arena.allocate<std::uint16_t>("check/matrices", bits.size());
    const auto result = arena.allocate<float>("check/product", 64 * N);
    matrices.upload(bits, stream);
    constexpr int shared_bytes = 2 * (64 * 64 + std::max(N, 32) * 64);
    launch(multiply_group<A_REGISTERS, A_TRANSPOSED, B_TRANSPOSED, N, std::uint16_t>,
           Launch(1, 128, shared_bytes, stream), result.data(), matrices.data(), 0);
    auto sum = [&](std::size_t i, auto of) {
        double total = 0;
        for (std::size_t k = 0; k < 32; k++) total += of(values[i / N * 32 + k] * values[64 * 32 + k * N + i % N]);
        return total;
    };
    // As for mma_m16n8k16, hardware truncates sums a few bits below fp32's last bit.
    return first_difference(
        result.download(stream), [&](std::size_t i) { return sum(i, [](double x) { return x; }); },
        [&](std::size_t i) { return 1e-6 * sum(i, [](double x) { return std::abs(x); }); });
}

// Checks the use of wgmma that documentation says least about: N = 32 and B in MN-major order, starting 64 bytes into a
// swizzled row of 128, as attention's backward multiplies keys of head size 64.
inline std::string wgmma_half_row(Arena& arena, cudaStream_t stream) {
    return wgmma_of<false, true, true, 32>(arena, stream);
}
inline std::string wgmma_shared(Arena& arena, cudaStream_t stream) {
    for (auto check :
         {wgmma_of<false, false, false, 64>, wgmma_of<false, false, true, 64>, wgmma_of<false, true, false, 64>,
          wgmma_of<false, true, true, 128>, wgmma_of<false, false, false, 32>, wgmma_of<false, false, false, 128>,
          wgmma_of<false, false, true, 128>, wgmma_of<false, false, false, 192>, wgmma_of<false, false, true, 192>})
        if (std::string difference = check(arena, stream); !difference.empty()) return difference;
    return "";
}
inline std::string wgmma_registers(Arena& arena, cudaStream_t stream) {
    for (auto check : {wgmma_of<true, false, false, 64>, wgmma_of<true, false, true, 64>,
                       wgmma_of<true, false, false, 128>, wgmma_of<true, false, true, 128>})
        if (std::string difference = check(arena, stream); !difference.empty()) return difference;
    return "";
}

}   // namespace ptx_checks

inline constexpr InstructionCheck hopper_instruction_checks[] = {
    {"wgmma, N = 32, B from the middle of a swizzled row", ptx_checks::wgmma_half_row},
    {"tma_load", ptx_checks::tma_load},
    {"tma_store", ptx_checks::tma_store},
    {"mbarrier_wait", ptx_checks::mbarriers},
    {"wgmma, both operands in shared memory", ptx_checks::wgmma_shared},
    {"wgmma, one operand in registers", ptx_checks::wgmma_registers},
};
