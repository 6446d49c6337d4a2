// Multiplies matrices on the CPU, for the stand-ins of cuBLASLt and cuDNN.
//
// The result is cut into tiles that stay in a core's cache together with their operands. The thread pool shares out the
// tiles, and single-threaded oneDNN computes each (so that OpenMP's pool of threads never wakes up; measured, the tiles
// lose nothing against oneDNN's own threading). bf16 operands go to oneDNN unchanged if the processor multiplies them
// (AMX, or vdpbf16ps of AVX-512), else they are widened to fp32 tile by tile: without such instructions, oneDNN's bf16
// runs at half the speed of fp32.
//
// A tile's arithmetic depends on the shape and the number of threads, never on which thread computes it.
#pragma once

#include <cstdint>

namespace host {

enum class GemmEpilogue : std::uint8_t {
    none,
    bias,       // D = AB + bias, which may be null
    gelu,       // aux = AB + bias, which may be null; D = gelu(aux)
    dgelu,      // D = AB * gelu'(aux)
    row_sums,   // bias(M) = sums of op(A)'s rows, for a transposed A
};

// How bf16 operands are multiplied. automatic: natively if multiplies_bf16(), else widened.
enum class Bf16Gemm : std::uint8_t { automatic, widened, native };

// Returns true if oneDNN has instructions for bf16 here: AMX, or at least vdpbf16ps. Measured on a Zen 4, the latter at
// 1.9 to 2.4 times the speed of widening. (On AVX-512 without it, oneDNN's bf16 runs at half that speed; on AVX2 it has
// none.) Uses oneDNN's effective instruction set, so ONEDNN_MAX_CPU_ISA counts. Bf16Gemm::native is refused if it is
// false.
bool multiplies_bf16();

// Arguments of D(M,N) = op(A)(M,K) op(B)(K,N) + `added`. `added` has D's type and stride: null, D itself (with no
// epilogue or row_sums), or another matrix (with bias). All are row-major. op(A) is A(M,K), or the transpose of A(K,M);
// op(B) is B(K,N), or the transpose of B(N,K). Strides are elements between rows. Bias and aux have D's type. Sums are
// fp32.
struct Gemm {
    std::int64_t M, N, K;
    const void* a;
    std::int64_t a_stride;
    bool a_transposed;
    const void* b;
    std::int64_t b_stride;
    bool b_transposed;
    bool input_bf16;   // type of A and B: bf16, else fp32
    void* d;
    std::int64_t d_stride;
    bool output_bf16;
    const void* added = nullptr;
    GemmEpilogue epilogue = GemmEpilogue::none;
    void* bias = nullptr;   // (N), or (M) for row_sums
    void* aux = nullptr;
    std::int64_t aux_stride = 0;
    Bf16Gemm bf16 = Bf16Gemm::automatic;
};

void gemm(const Gemm& g);

// For tests: makes cuBLASLt's stand-in refuse this epilogue (a cublasLtEpilogue_t) from now on; 0: refuse none.
void refuse_epilogue(int epilogue);
// For tests: makes the heuristic name so many algorithms (at most 4), not one.
void offer_algorithms(int count);
// For tests: makes the heuristic name none if C may be less aligned than D.
void refuse_unaligned_addend(bool refuse);

// Multiplies in fp32 by oneDNN on the calling thread alone: C = alpha op(A) op(B) + beta C, row-major as above.
void sgemm_on_this_thread(bool a_transposed, bool b_transposed, std::int64_t M, std::int64_t N, std::int64_t K,
                          float alpha, const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                          float beta, float* c, std::int64_t c_stride);

}   // namespace host
