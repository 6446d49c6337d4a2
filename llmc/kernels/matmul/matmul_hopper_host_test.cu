// Matmuls for sm_90a on the models of their instructions: right, and found wrong without any one.
#include <algorithm>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/ptx/left_out_testing.h"
#include "llmc/cuda_on_cpu/ptx/slow_warp_testing.h"
#include "llmc/kernels/matmul/matmul_hopper.cuh"
#include "llmc/kernels/matmul/matmul_hopper_testing.h"

namespace {

const char* const source = "matmul_hopper.cuh";

// Returns what a kernel does wrong on four tiles of one block, two by two, each deeper than the ring; empty if nothing.
std::string mistake(HopperMatmulEnd end, bool transposed, int width, int slow_warp, int blocks = 1) {
    host::TestDevice device(host::strict_checks());
    const host::SlowWarp slow(slow_warp);
    const HopperMatmulProblem problem({end, transposed, 140, 2 * width, 64 * 6, !transposed});
    try {
        return problem.difference(width, blocks);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

// Calls that can be left out and nothing is wrong.
std::vector<host::CallSite> calls_that_do_not_show(HopperMatmulEnd end, bool transposed, int width) {
    std::vector<host::CallSite> result;
    const auto calls = host::calls_in(source, [&] { CHECK(mistake(end, transposed, width, -1) == ""); });
    CHECK(calls.size() > 15);
    for (const host::CallSite& call : calls) {
        // threads that begin in another order show it: the stand-in tries that on the first launches of a shape
        const int blocks = call.instruction == "__syncthreads" ? 2 : 1;
        auto shows = [&](int slow_warp) {
            return host::without(call, [&] { return mistake(end, transposed, width, slow_warp, blocks); }) != "";
        };
        if (!shows(-1) && !shows(7) && !shows(9)) result.push_back(call);
    }
    return result;
}

}   // namespace

TEST_CASE("sm90: matmul: it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) {
        CHECK(mistake(HopperMatmulEnd::add, false, 192, slow_warp) == "");
        CHECK(mistake(HopperMatmulEnd::gelu, false, 128, slow_warp) == "");
        CHECK(mistake(HopperMatmulEnd::plain, true, 192, slow_warp) == "");
        CHECK(mistake(HopperMatmulEnd::gelu_slope, true, 128, slow_warp) == "");
    }
}

TEST_CASE("sm90: matmul: without any one of its instructions it is wrong for certain") {
    // Where bias is fetched, the model lets the thread that makes the barriers run before they are used.
    const std::vector<host::CallSite> hidden = calls_that_do_not_show(HopperMatmulEnd::gelu, false, 192);
    REQUIRE(hidden.size() == 1);
    CHECK(hidden[0].instruction == "__syncthreads");
    CHECK(calls_that_do_not_show(HopperMatmulEnd::gelu_slope, true, 192).empty());
    CHECK(calls_that_do_not_show(HopperMatmulEnd::plain, true, 192).empty());
}
