// The models of asynchronous instructions are strict: a kernel that leaves out a wait or a barrier is wrong for
// certain, not only where the hardware is slow enough. Shown on the attention kernels themselves, on shapes longer than
// their pipelines.
#include <algorithm>
#include <cmath>

#include "llmc/base/stream.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/ptx/left_out_testing.h"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ptx/ptx.cuh"

namespace {

// Only the numbers are judged: the stand-in's check of thread orders would find the missing barrier before them.
host::Checks without_order_check() { return host::parse_checks("memory,poison"); }

struct Problem {
    // 400 keys are seven tiles of 64 and 400 queries thirteen of 32: more than any pipeline holds. Grouped queries have
    // a barrier of their own, between the heads that share keys.
    explicit Problem(bool grouped) : shape(self_attention_shape(1, 400, grouped ? 2 : 1, 64, true, grouped ? 2 : 1)) {}
    AttentionShape shape;
    AttentionInputs inputs = random_inputs<bf16>(shape);
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
};

// Returns what attention does wrong; empty if nothing.
std::string mistake(bool grouped) {
    host::TestDevice device(without_order_check());
    const Problem p(grouped);
    const AttentionTolerance tolerance = attention_tolerance<bf16>();
    auto backward = [](const AttentionBackward<bf16>& a, cudaStream_t stream) {
        launch_attention_delta(a, stream);
        launch_attention_backward_mma(a, stream);
    };
    try {
        const auto out =
            run_forward<bf16, bf16>(launch_attention_forward_mma<bf16>, p.shape, Layout::packed, p.inputs).out;
        const auto found = run_backward<bf16, bf16>(backward, p.shape, Layout::packed, p.inputs, p.expected);
        const double gradient =
            std::max({relative_error(found.dq, p.expected.dq), relative_error(found.dk, p.expected.dk),
                      relative_error(found.dv, p.expected.dv)});
        const double error = relative_error(out, p.expected.out);
        if (error < tolerance.out && gradient < tolerance.gradient) return "";
        return text("differs by ", error, " and ", gradient);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

}   // namespace

TEST_CASE("ptx_model: attention without any one of its copies' waits and barriers is wrong") {
    std::set<std::string> instructions;
    for (const bool grouped : {false, true}) {
        const auto calls = host::calls_in("sm80/attention_mma", [&] { CHECK(mistake(grouped) == ""); });
        CHECK(calls.size() > 10);
        for (const host::CallSite& call : calls) {
            CAPTURE(call.file);
            CAPTURE(call.line);
            CHECK_MESSAGE(host::without(call, [&] { return mistake(grouped); }) != "", call.instruction);
            instructions.insert(call.instruction);
        }
    }
    for (const char* one : {"cp_async_16", "cp_async_4", "cp_async_commit", "cp_async_wait", "__syncthreads"})
        CHECK(instructions.contains(one));
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
