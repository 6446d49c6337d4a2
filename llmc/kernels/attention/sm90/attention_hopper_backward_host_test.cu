// Backward attention for sm_90a on the models of its instructions: right, and found wrong without any one.
#include <algorithm>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/ptx/left_out_testing.h"
#include "llmc/cuda_on_cpu/ptx/slow_warp_testing.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/attention/sm90/attention_hopper_launch.h"

namespace {

using Tile = HopperBackwardTile<64>;
const char* const source = "attention_hopper_backward.cuh";

void backward(const AttentionBackward<bf16, float>& a, cudaStream_t stream) {
    Arena arena;
    const auto workspace = arena.allocate<float>("test/workspace", sm90_attention_workspace(a.shape));
    launch_attention_delta(a, stream);
    launch_hopper_backward<64>(a, workspace.data(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

// 512 queries are eight tiles: more than the ring holds. The first tile of keys is seen by all of them.
AttentionShape shape_of(int keys) { return {1, 1, 512, keys, 64, 0.125f, true, 0, 0}; }

// Returns what the kernel does wrong; empty if nothing.
std::string mistake(int slow_warp, const AttentionShape& shape) {
    host::TestDevice device(host::strict_checks());
    const host::SlowWarp slow(slow_warp);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    const AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
    try {
        const AttentionReference found = run_backward<bf16, float>(backward, shape, Layout::packed, inputs, expected);
        const double error = std::max({relative_error(found.dq, expected.dq), relative_error(found.dk, expected.dk),
                                       relative_error(found.dv, expected.dv)});
        return error < attention_tolerance<bf16>().gradient ? "" : text("differs by ", error);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

std::string mistake(int slow_warp, int keys = 256) { return mistake(slow_warp, shape_of(keys)); }

// Returns the call before add_release, by which a thread reports that its block has added to dq: the barrier that all
// of its group must have reached.
host::CallSite call_before_release() {
    host::CallSite last, before;
    const host::WatchedCalls watched([&](const char* instruction, const host::Site& site) {
        if (host::thread_in_block() != Tile::group_threads) return true;   // the first of those that compute
        if (std::string(instruction) == "add_release") before = last;
        last = {instruction, site.file, site.line};
        return true;
    });
    mistake(-1);
    return before;
}

// Returns true if a block reports it before all threads of a group have reached the barrier. The last block of two
// reports alone.
bool says_too_early(const host::CallSite& left_out, const host::CallSite& barrier) {
    int came[Tile::groups] = {};
    bool early = false;
    const host::WatchedCalls watched([&](const char* instruction, const host::Site& site) {
        const unsigned group = host::thread_in_block() / Tile::group_threads - 1;
        if (host::is_call(barrier, instruction, site)) came[group]++;
        if (std::string(instruction) == "add_release" && came[group] % Tile::group_threads != 0) early = true;
        return !host::is_call(left_out, instruction, site);
    });
    mistake(-1);
    return early;
}

// Calls that can be left out, and nothing is wrong while blocks come in the order of their numbers.
std::vector<host::CallSite> calls_that_do_not_show() {
    std::vector<host::CallSite> result;
    const auto calls = host::calls_in(source, [] { CHECK(mistake(-1) == ""); });
    CHECK(calls.size() > 30);
    for (const host::CallSite& call : calls) {
        // threads that begin in another order show it: the stand-in tries that on the first launches of a shape
        const int keys = call.instruction == "__syncthreads" ? 384 : 256;
        auto shows = [&](int slow_warp, int count) {
            return host::without(call, [&] { return mistake(slow_warp, count); }) != "";
        };
        if (!shows(-1, keys) && !shows(7, 256)) result.push_back(call);
    }
    return result;
}

}   // namespace

TEST_CASE("sm90: attention backward: it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) CHECK(mistake(slow_warp) == "");
}

TEST_CASE("sm90: attention backward: heads of queries that share keys follow each other, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) {   // tiles of a head: an odd number, or one
        CHECK(mistake(slow_warp, self_attention_shape(1, 190, 6, 64, true, 3)) == "");
        CHECK(mistake(slow_warp, self_attention_shape(1, 60, 4, 64, false, 4)) == "");
    }
}

namespace {

struct Alone {
    std::string fault;
    bool dq_written = false;
};
// Starts the last of two blocks without the first one, which it has to wait for.
Alone last_block_alone() {
    host::TestDevice device(host::strict_checks());
    const AttentionShape shape = shape_of(256);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    Alone result;
    auto last_block = [&](const AttentionBackward<bf16, float>& a, cudaStream_t stream) {
        Arena arena;
        const HopperBackwardPlaces<64> places(shape);
        const auto workspace = arena.allocate<float>("test/workspace", places.all());
        workspace.zero(stream);
        const HopperBackwardShared in_memory = places.in(workspace.data());
        const int number = 1;
        CUDA_CHECK(cudaMemcpyAsync(in_memory.numbers, &number, sizeof(int), cudaMemcpyHostToDevice, stream));
        launch_attention_delta(a, stream);
        launch(attention_backward_hopper<float, 64>, Launch(1, Tile::threads, Tile::shared_bytes, stream), a,
               hopper_backward_maps<64>(a), in_memory, 1);
        const bool ended = cudaStreamSynchronize(stream) == cudaSuccess;
        if (!ended) result.fault = device->take_fault();
        std::vector<float> row(static_cast<std::size_t>(shape.HS));   // that sees keys of both blocks
        CUDA_CHECK(
            cudaMemcpy(row.data(), a.dq.data + 191 * a.dq.token, row.size() * sizeof(float), cudaMemcpyDeviceToHost));
        result.dq_written = std::ranges::count(row, GAP) == 0;
        if (!ended) throw Error(ErrorKind::bug, result.fault);
    };
    try {
        run_backward<bf16, float>(last_block, shape, Layout::packed, inputs,
                                  reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout));
    } catch (const Error&) {
    }
    return result;
}

}   // namespace

TEST_CASE("sm90: attention backward: without any one of its instructions it is wrong for certain") {
    const host::CallSite barrier = call_before_release();
    CHECK(barrier.instruction == "named_barrier_sync");
    CHECK(!says_too_early({}, barrier));
    const Alone whole = last_block_alone();   // it has to wait for the first one
    CHECK(whole.fault.find("deadlock") != std::string::npos);
    CHECK(!whole.dq_written);
    int before_all = 0, before_some = 0, with_the_next = 0;
    for (const host::CallSite& call : calls_that_do_not_show()) {
        CAPTURE(call.instruction);
        CAPTURE(call.line);
        if (call == barrier) {
            CHECK(says_too_early(call, barrier));
            continue;
        }
        if (call.instruction == "wgmma_commit") {   // the product p dout, which may end with the next products
            with_the_next++;
            continue;
        }
        const Alone without = host::without(call, last_block_alone);
        CHECK(without.dq_written);
        if (call.instruction == "wait_acquire") {
            CHECK(without.fault == "");
            before_all++;
        } else {   // one thread waits, the others do not
            CHECK(call.instruction == "named_barrier_sync");
            CHECK(without.fault.find("deadlock") != std::string::npos);
            before_some++;
        }
    }
    CHECK(before_all == 1);
    CHECK(before_some == 1);
    CHECK(with_the_next == 1);
}
