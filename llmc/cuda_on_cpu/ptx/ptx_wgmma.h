// Models of the products of a group of four warps, for ptx_hopper.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "llmc/cuda_on_cpu/ptx/ptx_hopper_state.h"

namespace ptx_model {

// For tests of the order in which groups of warps compute: group of each batch, in the order of commits.
inline std::vector<int>* commit_log = nullptr;

inline void wgmma_fence() { thread_state().fenced = true; }

inline void wgmma_commit() {
    ThreadState& thread = thread_state();
    thread.batches.push_back(thread.products.size());
    thread.fenced = false;   // the registers may be touched from here on
    const unsigned index = host::thread_in_block();
    if (commit_log != nullptr && index % 128 == 0) commit_log->push_back(static_cast<int>(index / 128));
}

inline void wgmma(const Wgmma& product) {
    ThreadState& thread = thread_state();
    if (!thread.fenced) fault("a product without a wgmma_fence before its batch");
    const std::size_t count = static_cast<std::size_t>(product.n) / 2;
    Sums* mine = nullptr;
    for (Sums& sums : thread.sums)
        if (sums.registers == product.d) mine = &sums;
    if (mine == nullptr) {
        thread.sums.push_back({product.d, 0, std::vector<float>(product.d, product.d + count)});
        mine = &thread.sums.back();
        std::memset(product.d, under_way, count * sizeof(float));
    }
    mine->products++;
    thread.products.push_back(product);
}

inline float widened_bf16(const unsigned char* bytes) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return __uint_as_float(std::uint32_t{bits} << 16);
}

// Returns element (row, k) of an operand in shared memory, row counting its M or N.
inline const unsigned char* operand_element(const BlockState& block, std::uint64_t operand, bool transposed, int row,
                                            int k) {
    const auto field = [&](int bit) { return static_cast<std::uint32_t>(operand >> bit & 0x3fff) << 4; };
    const std::uint32_t first = field(0), panel = field(16), eight_rows = field(32);
    const auto i = static_cast<std::uint32_t>(transposed ? k : row),
               j = static_cast<std::uint32_t>(transposed ? row : k);
    const std::uint32_t offset = swizzled(first + j / 64 * panel + i / 8 * eight_rows + i % 8 * 128 + j % 64 * 2);
    if (offset + 2 > host::dynamic_shared_bytes) fault("an operand of a product lies outside of shared memory");
    return &block.seen[offset];
}
// Checks an operand. `count`: its M or N.
inline void require_operand(std::uint64_t operand, bool transposed, int count) {
    if (operand >> 62 != 1) fault("an operand of a product is not swizzled in 128 bytes");
    const std::uint32_t start = static_cast<std::uint32_t>(operand << 4) & 0x3ff;
    if (start & 0x380) fault("an operand of a product does not begin in the first of eight rows");
    const int row = transposed ? 2 * std::min(count, 64) : 32;   // bytes
    if (static_cast<int>(start) + row > 128) fault("rows of a product's operand end beyond the 128 bytes of a panel's");
}

inline constexpr int most_columns = 256;   // N of a product

// Computes one product of one warp: sums (16, n) of rows 16 `quarter` .. of the group. Returns a number that identifies
// its operands.
inline std::uint64_t multiply(const BlockState& block, const Wgmma& product, float (*sums)[most_columns],
                              const float (*left)[16], int quarter) {
    static thread_local float rows[64][16], right[16][most_columns];
    std::uint64_t sum = 0;
    auto count_in = [&](const unsigned char* bytes) {
        std::uint16_t bits;
        std::memcpy(&bits, bytes, 2);
        sum = (sum ^ bits) * 0x100000001b3ull;
    };
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < product.n; n++) {
            const unsigned char* element = operand_element(block, product.b, product.b_transposed, n, k);
            right[k][n] = widened_bf16(element);
            count_in(element);
        }
    if (product.a_registers == nullptr) {
        for (int m = 0; m < 64; m++)
            for (int k = 0; k < 16; k++) {
                const unsigned char* element = operand_element(block, product.a, product.a_transposed, m, k);
                rows[m][k] = widened_bf16(element);
                count_in(element);
            }
        left = rows + 16 * quarter;
    }
    for (int m = 0; m < 16; m++) {
        float* row = sums[m];
        for (int k = 0; k < 16; k++) {
            const float factor = left[m][k];
            for (int n = 0; n < product.n; n++) row[n] += factor * right[k][n];
        }
    }
    return sum;
}

inline void require_sums_untouched(const Sums& sums) {
    for (std::size_t i = 0; i < sums.values.size(); i++) {
        if (std::bit_cast<std::uint32_t>(sums.registers[i]) == ~0u) continue;
        fault("sums of a product were written while it was under way (a wgmma_wait is missing)");
    }
}

struct WarpWait {
    ThreadState* thread;
    std::size_t count;
};

inline void require_same(const Wgmma& a, const Wgmma& b) {
    if (a.a == b.a && a.b == b.b && a.n == b.n && a.accumulate == b.accumulate) return;
    fault("lanes of a warp disagree about a product's operands");
}

// Performs the next product of a warp, for all its lanes.
inline void perform_one(WarpWait* const* lanes, std::size_t index) {
    BlockState& block = block_state();
    const unsigned warp = host::thread_in_block() / 32, group = warp / 4, quarter = warp % 4;
    const Wgmma& product = lanes[0]->thread->products[index];
    static thread_local float sums[16][most_columns], left[16][16];
    std::vector<float>* values[32];
    for (int lane = 0; lane < 32; lane++) {
        ThreadState& thread = *lanes[lane]->thread;
        const Wgmma& part = thread.products[index];
        require_same(part, product);
        for (Sums& of : thread.sums)
            if (of.registers == part.d) values[lane] = &of.values;
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < product.n / 2; i++)
            sums[g + i / 2 % 2 * 8][i / 4 * 8 + t + i % 2] =
                product.accumulate ? (*values[lane])[static_cast<std::size_t>(i)] : 0.0f;
        if (product.a_registers == nullptr) continue;
        for (int e = 0; e < 4; e++) {
            left[g + e % 2 * 8][t + e / 2 * 8] = low_of(part.a_registers[e]);
            left[g + e % 2 * 8][t + e / 2 * 8 + 1] = high_of(part.a_registers[e]);
        }
    }
    if (product.a_registers == nullptr) require_operand(product.a, product.a_transposed, 64);
    require_operand(product.b, product.b_transposed, product.n);
    const std::uint64_t sum = multiply(block, product, sums, left, static_cast<int>(quarter));
    std::vector<Operands>& known = block.operands[group];
    const std::size_t number = lanes[0]->thread->performed;
    if (known.size() <= number) known.resize(number + 1, {0, 0, 0, 0});
    Operands& found = known[number];
    if (found.warps == 0) found = {product.a, product.b, sum, 0};
    if (found.a != product.a || found.b != product.b) fault("the warps of a group disagree about a product's operands");
    if (found.sum != sum)
        fault("operands of a product were overwritten while it was under way in another warp of the group");
    found.warps++;
    const bool wrong = damage == (product.a_registers == nullptr ? Damage::wgmma : Damage::wgmma_registers);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < product.n / 2; i++)
            (*values[lane])[static_cast<std::size_t>(i)] =
                wrong ? 0.0f : sums[g + i / 2 % 2 * 8][i / 4 * 8 + t + i % 2];
        lanes[lane]->thread->performed++;
    }
}

// For tests: number of a warp that runs after all others when products end.
inline int slow_warp = -1;

inline void wgmma_wait(int pending) {
    for (int turns = static_cast<int>(host::thread_in_block() / 32) == slow_warp ? 16 : 1; turns > 0; turns--)
        let_others_run();
    ThreadState& thread = thread_state();
    const std::ptrdiff_t ended = static_cast<std::ptrdiff_t>(thread.batches.size()) - pending;
    const std::size_t count = ended <= 0 ? 0 : thread.batches[static_cast<std::size_t>(ended) - 1];
    WarpWait wait{&thread, count};
    host::warp_collective(wait, [](WarpWait* const* lanes) {
        for (int lane = 1; lane < 32; lane++)
            if (lanes[lane]->count != lanes[0]->count) fault("lanes of a warp wait for different products");
        for (std::size_t i = 0; i < lanes[0]->count; i++) perform_one(lanes, i);
    });
    for (std::size_t i = 0; i < count; i++)
        for (std::size_t s = 0; s < thread.sums.size(); s++) {
            Sums& sums = thread.sums[s];
            if (sums.registers != thread.products[i].d || --sums.products > 0) continue;
            require_sums_untouched(sums);
            std::memcpy(sums.registers, sums.values.data(), sums.values.size() * sizeof(float));
            thread.sums.erase(thread.sums.begin() + static_cast<std::ptrdiff_t>(s));
            break;
        }
    if (count == 0) return;
    thread.products.erase(thread.products.begin(), thread.products.begin() + static_cast<std::ptrdiff_t>(count));
    thread.batches.erase(thread.batches.begin(), thread.batches.begin() + ended);
    for (std::size_t& end : thread.batches) end -= count;
}

}   // namespace ptx_model
