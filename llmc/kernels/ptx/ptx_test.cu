#include <doctest/doctest.h>

#include <string>

#include "llmc/kernels/ptx/ptx_checks.cuh"

TEST_CASE("ptx: every instruction agrees with a plain computation") {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Arena arena;
    for (const InstructionCheck& check : instruction_checks) {
        CAPTURE(std::string(check.instruction));
        CHECK(check.run(arena, stream) == "");
    }
    cudaStreamDestroy(stream);
}
