#include <doctest/doctest.h>

#include <iterator>
#include <string>

#include "llmc/base/stream.h"
#include "llmc/kernels/ptx/ptx_hopper_checks.cuh"

namespace {

void check_instructions(const InstructionCheck* first, const InstructionCheck* last) {
    int device = 0, major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9) return;
    const OwnedStream stream;
    Arena arena;
    for (const InstructionCheck* check = first; check != last; check++) {
        CAPTURE(std::string(check->instruction));
        CHECK(check->run(arena, stream.get()) == "");
    }
}

}   // namespace

// alone, so that gpu_check.sh can begin with it
TEST_CASE("sm90: the least certain product agrees with a plain computation") {
    const InstructionCheck* const least_certain = std::begin(hopper_instruction_checks);
    REQUIRE(std::string(least_certain->instruction).find("N = 32") != std::string::npos);
    check_instructions(least_certain, least_certain + 1);
}

TEST_CASE("sm90: every instruction agrees with a plain computation") {
    check_instructions(std::begin(hopper_instruction_checks), std::end(hopper_instruction_checks));
}
