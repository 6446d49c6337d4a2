#include <doctest/doctest.h>

#include <string>

#include "llmc/base/stream.h"
#include "llmc/kernels/ptx_hopper_checks.cuh"

TEST_CASE("sm90: every instruction agrees with a plain computation") {
    int device = 0, major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9) return;
    const OwnedStream stream;
    Arena arena;
    for (const InstructionCheck& check : hopper_instruction_checks) {
        CAPTURE(std::string(check.instruction));
        CHECK(check.run(arena, stream.get()) == "");
    }
}
