// The models of asynchronous instructions are strict: a kernel that leaves out a wait or a barrier is wrong for
// certain, not only where the hardware is slow enough. Shown on the attention kernels themselves, on shapes longer than
// their pipelines.
#include <algorithm>
#include <cmath>

#include "llmc/base/stream.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/attention/attention_mma_backward.cuh"
#include "llmc/kernels/attention/attention_mma_forward.cuh"
#include "llmc/kernels/attention/attention_test.h"
#include "llmc/kernels/launch.cuh"

namespace {

struct WithoutWait {
    template <int PENDING>
    __device__ static void wait() {}
    __device__ static void barrier() { __syncthreads(); }
};
struct WithoutBarrier {
    template <int PENDING>
    __device__ static void wait() {
        cp_async_wait<PENDING>();
    }
    __device__ static void barrier() {}
};

template <class Pipeline>
double forward_error(const AttentionShape& shape, const AttentionInputs& inputs, const AttentionReference& expected) {
    auto forward = [](const AttentionForward<bf16>& a, cudaStream_t stream) {
        using Tile = MmaForwardTile<64>;
        dim3 grid(ceil_div(a.shape.Tq, Tile::queries), a.shape.NH, a.shape.B);
        launch(attention_forward_mma<bf16, 64, Pipeline>, Launch(grid, Tile::threads, Tile::shared_bytes, stream), a);
    };
    return relative_error(run_forward<bf16, bf16>(forward, shape, Layout::packed, inputs).out, expected.out);
}

template <class QueriesPipeline, class KeysPipeline>
AttentionReference backward_with(const AttentionShape& shape, const AttentionInputs& inputs,
                                 const AttentionReference& expected) {
    auto backward = [](const AttentionBackward<bf16>& a, cudaStream_t stream) {
        using Queries = MmaQueriesTile<64>;
        using Keys = MmaKeysTile<64>;
        unsigned rows = static_cast<unsigned>(ceil_div(a.shape.B * a.shape.NH * a.shape.Tq, DELTA_ROWS));
        launch(attention_delta<bf16, bf16>, Launch(rows, DELTA_THREADS, 0, stream), a);
        dim3 query_grid(ceil_div(a.shape.Tq, Queries::queries), a.shape.NH, a.shape.B);
        launch(attention_backward_queries_mma<bf16, 64, QueriesPipeline>,
               Launch(query_grid, Queries::threads, Queries::shared_bytes, stream), a);
        dim3 key_grid(ceil_div(a.shape.Tk, Keys::keys), a.shape.NH, a.shape.B);
        launch(attention_backward_keys_mma<bf16, 64, KeysPipeline>,
               Launch(key_grid, Keys::threads, Keys::shared_bytes, stream), a);
    };
    return run_backward<bf16, bf16>(backward, shape, Layout::packed, inputs, expected);
}

// Only the numbers are judged: the stand-in's check of thread orders would find the missing barrier before them.
host::Checks without_order_check() { return host::parse_checks("memory,poison"); }

struct Problem {
    // 400 keys are seven tiles of 64 and 400 queries thirteen of 32: more than any pipeline holds
    AttentionShape shape = self_attention_shape(1, 400, 1, 64);
    AttentionInputs inputs = random_inputs<bf16>(shape);
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
};

}   // namespace

TEST_CASE("ptx_model: attention with its waits and barriers is right") {
    host::TestDevice device(without_order_check());
    Problem problem;
    AttentionTolerance tolerance = attention_tolerance<bf16>();
    CHECK(forward_error<AsyncPipeline>(problem.shape, problem.inputs, problem.expected) < tolerance.out);
    AttentionReference found =
        backward_with<AsyncPipeline, AsyncPipeline>(problem.shape, problem.inputs, problem.expected);
    CHECK(relative_error(found.dq, problem.expected.dq) < tolerance.gradient);
    CHECK(relative_error(found.dk, problem.expected.dk) < tolerance.gradient);
    CHECK(relative_error(found.dv, problem.expected.dv) < tolerance.gradient);
}

TEST_CASE_TEMPLATE("ptx_model: attention without a wait or a barrier is wrong", Pipeline, WithoutWait, WithoutBarrier) {
    // far from right, or a fault that names the kernel
    auto is_found = [](const char* kernel, const auto& error_of) {
        host::TestDevice device(without_order_check());
        const Problem problem;
        try {
            return error_of(problem) > 1;
        } catch (const Error& error) {
            const std::string fault = device->fault_message();
            CHECK_MESSAGE(host::contains(fault, kernel), fault, error.what());
            return host::contains(fault, "asynchronous cop");
        }
    };
    CHECK(is_found("attention_forward_mma",
                   [](const Problem& p) { return forward_error<Pipeline>(p.shape, p.inputs, p.expected); }));
    CHECK(is_found("attention_backward_queries_mma", [](const Problem& p) {
        const auto found = backward_with<Pipeline, AsyncPipeline>(p.shape, p.inputs, p.expected);
        return relative_error(found.dq, p.expected.dq);
    }));
    CHECK(is_found("attention_backward_keys_mma", [](const Problem& p) {
        const auto found = backward_with<AsyncPipeline, Pipeline>(p.shape, p.inputs, p.expected);
        return std::min(relative_error(found.dk, p.expected.dk), relative_error(found.dv, p.expected.dv));
    }));
}

namespace {

// One warp: each thread copies 16 bytes. What it leaves out or does too early is the mistake.
enum class Mistake { none, no_wait_at_all, no_last_wait, written_early, written_by_another };

template <Mistake MISTAKE>
__global__ void copy_and_read(float* out, const float* in) {
    alignas(16) __shared__ float tile[256];
    const int t = static_cast<int>(threadIdx.x), neighbour = (t + 5) % 32;
    auto copy = [&](int to) {
        cp_async_16(shared_address(tile + to + 4 * t), in + 4 * t, true);
        cp_async_commit();
    };
    copy(0);
    if (MISTAKE == Mistake::no_last_wait) {
        cp_async_wait<0>();
        copy(128);
    }
    if (MISTAKE == Mistake::written_early) tile[4 * t] = 1.0f;
    if (MISTAKE != Mistake::no_wait_at_all && MISTAKE != Mistake::no_last_wait) cp_async_wait<0>();
    if (MISTAKE == Mistake::written_by_another) tile[4 * neighbour] = 1.0f;   // which may still wait for its own
    __syncwarp();
    out[t] = tile[4 * t + 1];
}

template <Mistake MISTAKE>
std::string fault_of_copies() {
    host::TestDevice device(without_order_check());
    Arena arena;
    const OwnedStream stream;
    auto in = arena.allocate<float>("test/in", 128), out = arena.allocate<float>("test/out", 32);
    in.upload(std::vector<float>(128, 2.0f), stream.get());
    launch(copy_and_read<MISTAKE>, Launch(1, 32, 0, stream.get()), out.data(), in.data());
    if (cudaStreamSynchronize(stream.get()) == cudaSuccess) {
        for (float value : out.download(stream.get())) CHECK(value == 2.0f);
    }
    return device->take_fault();
}

}   // namespace

TEST_CASE("ptx_model: copies that a kernel does not wait for, or writes over, are faults that name the kernel") {
    CHECK(fault_of_copies<Mistake::none>() == "");
    for (const std::string& fault :
         {fault_of_copies<Mistake::no_wait_at_all>(), fault_of_copies<Mistake::no_last_wait>()}) {
        CHECK_MESSAGE(host::contains(fault, "ends with 1 asynchronous copies"), fault);
        CHECK_MESSAGE(host::contains(fault, "copy_and_read"), fault);
    }
    for (const std::string& fault :
         {fault_of_copies<Mistake::written_early>(), fault_of_copies<Mistake::written_by_another>()}) {
        CHECK_MESSAGE(host::contains(fault, "written while an asynchronous copy"), fault);
        CHECK_MESSAGE(host::contains(fault, "copy_and_read"), fault);
    }
}
