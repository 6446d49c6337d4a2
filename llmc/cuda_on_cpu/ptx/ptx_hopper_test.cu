// The models of sm_90a's instructions are strict: each mistake in their use is a fault that says which, or gives
// not-a-number. Tried on one product whose operands are copied in and whose result is copied out.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ptx/ptx_hopper_checks.cuh"

namespace {

enum class Mistake {
    none,
    barrier_not_made,
    no_barrier_fence,
    arrives_too_often,
    panel_between_rows,
    target_written,
    no_wait_for_copies,
    bytes_not_expected,
    no_wgmma_fence,
    operand_between_rows,
    operand_outside,
    row_beyond_panel,
    too_many_bytes,
    lanes_disagree,
    warps_disagree,
    sums_written,
    no_commit,
    no_wgmma_wait,
    operand_overwritten,
    no_proxy_fence,
    source_written,
    store_before_tensor,
    no_store_commit,
    no_store_wait,
};

constexpr int panel_bytes = 64 * 128;

// back (64, 64) = in[head 0] (64, 64) in[head 1]^T, in bf16.
__global__ void small_product(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap back,
                              Mistake mistake) {
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress a = shared_address(shared), b = a + panel_bytes, staging = b + panel_bytes;
    const SharedAddress barrier = staging + panel_bytes;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    if (thread == 0 && mistake != Mistake::barrier_not_made) {
        mbarrier_init(barrier, 1);
        if (mistake != Mistake::no_barrier_fence) mbarrier_init_fence();
    }
    __syncthreads();
    if (thread == 0) {
        mbarrier_arrive_expect(barrier, mistake == Mistake::bytes_not_expected ? panel_bytes
                                        : mistake == Mistake::too_many_bytes   ? 1 << 20
                                                                               : 2 * panel_bytes);
        if (mistake == Mistake::arrives_too_often) mbarrier_arrive(barrier);
        tma_load(a + (mistake == Mistake::panel_between_rows ? 128 : 0), in, barrier, 0, 0, 0, 0);
        tma_load(b, in, barrier, 0, 0, 1, 0);
        if (mistake == Mistake::target_written) shared[100] = 1;
    }
    if (mistake != Mistake::no_wait_for_copies) mbarrier_wait(barrier, 0);

    float d[32];
    if (mistake != Mistake::no_wgmma_fence) wgmma_fence(d);
    for (int step = 0; step < 4; step++) {
        SharedAddress left = a + step * 32, right = b + step * 32;
        if (mistake == Mistake::operand_between_rows) left += 128;
        if (mistake == Mistake::row_beyond_panel) left += 16;   // the last step's 32 bytes begin at 112
        if (mistake == Mistake::operand_outside) right += 2 * panel_bytes;
        if (mistake == Mistake::lanes_disagree && thread == 5) right ^= 32;
        if (mistake == Mistake::warps_disagree && warp == 2) right ^= 32;
        wgmma(d, wgmma_operand(left), wgmma_operand(right), step > 0);
    }
    if (mistake != Mistake::no_commit) wgmma_commit();
    if (mistake == Mistake::sums_written) d[3] = 1.0f;
    if (mistake != Mistake::no_wgmma_wait) wgmma_wait<0>(d);
    if (mistake == Mistake::operand_overwritten && thread == 31) {   // while other warps may still multiply
        shared[8] ^= 1;
        fence_proxy_async(a, panel_bytes);
    }

    auto* out = reinterpret_cast<std::uint16_t*>(shared + 2 * panel_bytes);
    for (int i = 0; i < 32; i++) {
        const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        out[ptx_checks::in_panel(row, column)] = static_cast<std::uint16_t>(pack_bf16(d[i], 0.0f));
    }
    if (mistake != Mistake::no_proxy_fence) fence_proxy_async(staging + warp * 16 * 128, 16 * 128);
    __syncthreads();
    if (thread != 0) return;
    tma_store(back, staging, mistake == Mistake::store_before_tensor ? -8 : 0, 0, 0, 0);
    if (mistake != Mistake::no_store_commit) tma_store_commit();
    if (mistake == Mistake::source_written) out[7] ^= 1;
    if (mistake != Mistake::no_store_wait) tma_store_wait();
}

// Outcome of a mistake: a fault, or "" with the largest difference of the result, infinite if that is NaN.
struct Outcome {
    std::string fault;
    double difference = 0;
};
Outcome outcome_of(Mistake mistake) {
    host::TestDevice device(host::parse_checks("memory,poison"));
    const OwnedStream stream;
    Arena arena;
    const auto in = arena.allocate<bf16>("test/in", 2 * 64 * 64), back = arena.allocate<bf16>("test/back", 64 * 64);
    std::vector<bf16> values(in.size());
    for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<bf16>(normal(1, i));
    in.upload(values, stream.get());
    const TensorMap in_map = make_tensor_map(in.data(), {64, 64, 2, 1}, {128, panel_bytes, 16}, {64, 1, 1});
    const TensorMap back_map = make_tensor_map(back.data(), {64, 64, 1, 1}, {128, 16, 16}, {64, 1, 1});
    ptx_model::slow_warp = mistake == Mistake::operand_overwritten ? 3 : -1;
    launch(small_product, Launch(1, 128, 3 * panel_bytes + 1024, stream.get()), in_map, back_map, mistake);
    const cudaError_t status = cudaStreamSynchronize(stream.get());
    ptx_model::slow_warp = -1;
    if (status != cudaSuccess) return {device->take_fault(), 0};
    Outcome outcome;
    const std::vector<bf16> found = back.download(stream.get());
    for (int i = 0; i < 64 * 64; i++) {
        double expected = 0;
        for (int k = 0; k < 64; k++)
            expected += static_cast<double>(static_cast<float>(values[i / 64 * 64 + k])) *
                        static_cast<double>(static_cast<float>(values[64 * 64 + i % 64 * 64 + k]));
        const double is = static_cast<double>(static_cast<float>(found[i]));
        const double difference = std::isfinite(is) ? std::abs(is - expected) : INFINITY;
        outcome.difference = std::max(outcome.difference, difference);
    }
    return outcome;
}

}   // namespace

TEST_CASE("sm90: models: copies, a product and a store with all that orders them are right") {
    const Outcome outcome = outcome_of(Mistake::none);
    CHECK(outcome.fault == "");
    CHECK(outcome.difference < 0.15);   // error of sums up to 35, rounded to bf16
}

TEST_CASE("sm90: models: a mistake is a fault that says which") {
    for (auto [mistake, said] :
         {std::pair{Mistake::barrier_not_made, "used before mbarrier_init"},
          {Mistake::no_barrier_fence, "without a mbarrier_init_fence"},
          {Mistake::arrives_too_often, "more threads arrive at an mbarrier"},
          {Mistake::panel_between_rows, "a panel does not begin at a multiple of 1,024"},
          {Mistake::target_written, "written while an asynchronous copy into it was under way"},
          {Mistake::bytes_not_expected, "the block ends while a copy into its memory is under way"},
          {Mistake::no_wait_for_copies, "the block ends while a copy into its memory is under way"},
          {Mistake::no_wgmma_fence, "without a wgmma_fence"},
          {Mistake::operand_between_rows, "does not begin in the first of eight rows"},
          {Mistake::operand_outside, "lies outside of shared memory"},
          {Mistake::row_beyond_panel, "end beyond the 128 bytes"},
          {Mistake::too_many_bytes, "1048576 bytes: at most 1,048,575"},
          {Mistake::lanes_disagree, "lanes of a warp disagree"},
          {Mistake::warps_disagree, "warps of a group disagree"},
          {Mistake::sums_written, "sums of a product were written while it was under way"},
          {Mistake::no_commit, "ends while its products are under way"},
          {Mistake::no_wgmma_wait, "ends while its products are under way"},
          {Mistake::operand_overwritten, "operands of a product were overwritten"},
          {Mistake::no_proxy_fence, "stored without a fence_proxy_async"},
          {Mistake::source_written, "the source of a copy to global memory was written"},
          {Mistake::store_before_tensor, "begins before the tensor"},
          {Mistake::no_store_commit, "ends while its stores are under way"},
          {Mistake::no_store_wait, "ends while its stores are under way"}}) {
        const std::string fault = outcome_of(mistake).fault;
        const std::string expected = said;
        CHECK_MESSAGE(host::contains(fault, expected), expected, ": ", fault);
        CHECK_MESSAGE(host::contains(fault, "small_product"), fault);
    }
}
