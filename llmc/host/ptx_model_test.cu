// The models of asynchronous instructions are strict: a kernel that leaves out a wait or a barrier is wrong for
// certain, not only where the hardware is slow enough. Shown on the attention kernels themselves, on shapes longer than
// their pipelines.
#include <cmath>

#include "llmc/host/host_test.h"
#include "llmc/kernels/attention_mma_backward.cuh"
#include "llmc/kernels/attention_mma_forward.cuh"
#include "llmc/kernels/attention_test.h"
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

template <class Pipeline>
AttentionReference backward_with(const AttentionShape& shape, const AttentionInputs& inputs,
                                 const AttentionReference& expected) {
    auto backward = [](const AttentionBackward<bf16>& a, cudaStream_t stream) {
        using Queries = MmaQueriesTile<64>;
        using Keys = MmaKeysTile<64>;
        unsigned rows = static_cast<unsigned>(ceil_div(a.shape.B * a.shape.NH * a.shape.Tq, DELTA_ROWS));
        launch(attention_delta<bf16, bf16>, Launch(rows, DELTA_THREADS, 0, stream), a);
        dim3 query_grid(ceil_div(a.shape.Tq, Queries::queries), a.shape.NH, a.shape.B);
        launch(attention_backward_queries_mma<bf16, 64, Pipeline>,
               Launch(query_grid, Queries::threads, Queries::shared_bytes, stream), a);
        dim3 key_grid(ceil_div(a.shape.Tk, Keys::keys), a.shape.NH, a.shape.B);
        launch(attention_backward_keys_mma<bf16, 64, Pipeline>,
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
    AttentionReference found = backward_with<AsyncPipeline>(problem.shape, problem.inputs, problem.expected);
    CHECK(relative_error(found.dq, problem.expected.dq) < tolerance.gradient);
    CHECK(relative_error(found.dk, problem.expected.dk) < tolerance.gradient);
    CHECK(relative_error(found.dv, problem.expected.dv) < tolerance.gradient);
}

TEST_CASE_TEMPLATE("ptx_model: attention without a wait or a barrier is wrong", Pipeline, WithoutWait, WithoutBarrier) {
    host::TestDevice device(without_order_check());
    Problem problem;
    CHECK(forward_error<Pipeline>(problem.shape, problem.inputs, problem.expected) > 1);
    AttentionReference found = backward_with<Pipeline>(problem.shape, problem.inputs, problem.expected);
    CHECK(relative_error(found.dq, problem.expected.dq) > 1);
    CHECK(relative_error(found.dk, problem.expected.dk) > 1);
    CHECK(relative_error(found.dv, problem.expected.dv) > 1);
}
