// Multiplies matrices: the matmuls of a transformer, forward and backward, through cuBLASLt, or by own kernels
// (matmul_hopper.h) where they are the fastest.
//
// Everything is row-major. With tokens M, output channels N, input channels K:
//     forward           out(M,N)     = in(M,K) weight(N,K)^T + bias(N)          optionally followed by GELU
//     input gradient    dinp(M,K)    = dout(M,N) weight(N,K)                    optionally times the GELU's derivative
//     weight gradient   dweight(N,K) = dout(M,N)^T in(M,K)                      in fp32, or bf16 to save memory
//     bias gradient     dbias(N)     = sum of dout over its rows                (bias_gradient.h)
// Sums are accumulated in fp32 whatever the element type. `PRECISION=fp32` is true fp32: TF32 is used only if allowed.
//
// GELU is the tanh approximation (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), as in GPT-2.
//
// What must hold:
//   - every call is one row of `matmul_rows` (llmc/base/matmul_rows.h); a new use begins with a row there.
//   - one Matmul object serves one stream at a time: its calls share one workspace. Streams that may run at the same
//     time need an object each. (The stand-in's race detector sees the workspace.)
//   - results do not depend on timing: same binary, device, shapes and algorithms, same bits.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/base/matmul_rows.h"

// Products of one size in one call, where the call says that it takes them: elements from one matrix to the next.
struct MatmulBatch {
    int count = 1;
    std::int64_t out = 0, in = 0, weight = 0;   // also of dout, dinp and dweight
};

// Sizes of one matmul as named above, and the elements between the starts of two rows where rows have gaps between
// them (0: no gaps). A `pre_gelu` has the layout of its GELU's output.
struct MatmulShape {
    int M, N, K;
    std::int64_t out_stride = 0;      // row stride of out and dout (M,N)
    std::int64_t in_stride = 0;       // row stride of in and dinp (M,K)
    std::int64_t weight_stride = 0;   // row stride of weight and dweight (N,K)
    MatmulBatch batch = {};
};

// where_they_serve: on a device for which sm90_matmul_refusal is empty; always: for tests on models of instructions.
enum class OwnKernels : std::uint8_t { never, where_they_serve, always };

// Returns the least of three times of `work` on a stream, in seconds between events.
double matmul_seconds(const std::function<void()>& work, cudaStream_t stream);

struct MatmulOptions {
    bool allow_tf32 = false;   // fp32 matmuls may round their inputs to TF32 (10-bit mantissa)
    std::size_t workspace_bytes = std::size_t{32} << 20;   // recommended by cuBLAS for Hopper
    // Number of algorithms timed when a problem is first met; the fastest is taken. 1: the first of cuBLASLt's
    // heuristic, untimed; 0: 16 on a GPU, 1 on a CPU. The fastest one may differ from run to run, and with it the last
    // bits of results.
    int tries = 1;
    OwnKernels own_kernels = OwnKernels::never;   // tries kernels of matmul_hopper.h, too, if `tries` is not 1
    double most_seconds = 15;   // limit of all tries together; problems timed later get the heuristic's first
    // Measures algorithms: returns the seconds of `work` on a stream.
    std::function<double(const std::function<void()>& work, cudaStream_t stream)> timer = matmul_seconds;
};

// An algorithm chosen for one matmul, in a form that can be stored and given to another process on the same type of
// machine: the text names the problem, the words are the raw cublasLtMatmulAlgo_t; of an own kernel own_kernel_word and
// its width.
struct MatmulAlgorithm {
    static constexpr std::uint64_t own_kernel_word = ~std::uint64_t{0};

    std::string problem;
    std::array<std::uint64_t, 8> words;
    std::uint64_t workspace_bytes;

    bool is_own_kernel() const { return words[0] == own_kernel_word; }
    bool operator==(const MatmulAlgorithm&) const = default;
};

// Returns why the kernels of matmul_hopper.h are not used on the current device: another device, a build without them,
// or a difference from cuBLASLt on a small problem; empty if they are.
std::string sm90_matmul_refusal();

// T: element type of activations and weights. G: of gradients of parameters; float, or bf16 where T is bf16.
// Errors: Error(bug) when cuBLASLt refuses a call (the message names the problem), Error(no_device) when it cannot
// start.
class Matmul {
public:
    explicit Matmul(Arena& arena, MatmulOptions options = {});
    ~Matmul();
    Matmul(const Matmul&) = delete;
    Matmul& operator=(const Matmul&) = delete;

    // Computes out = in weight^T + bias; `bias` may be null. Takes batches without a bias.
    template <class T>
    void forward(T* out, const T* in, const T* weight, const T* bias, const MatmulShape& shape, cudaStream_t stream);
    // Computes forward for few rows; a single row is a matrix times a vector (matvec.cuh).
    template <class T>
    void forward_few(T* out, const T* in, const T* weight, const T* bias, const MatmulShape& shape,
                     cudaStream_t stream);

    // Computes out = residual(M,N) + in weight^T + bias. Rows have no gaps, and `out` is not `residual`. Rounded once;
    // twice where a kernel of its own adds the residual, because cuBLASLt has no algorithm for it (`unfused` says so),
    // and where cuBLASLt itself rounds the product before it adds. `bias` may be null.
    template <class T>
    void forward_add(T* out, const T* residual, const T* in, const T* weight, const T* bias, const MatmulShape& shape,
                     cudaStream_t stream);

    // Computes pre_gelu(M,N) = in weight^T + bias and out = gelu(pre_gelu). GELU is a kernel of its own where cuBLASLt
    // has no algorithm for it (`unfused` says so; for example, if rows are not a multiple of 8 elements apart), and in
    // fp32, which promises 1e-5: cuBLASLt does not say how exact its tanh is.
    template <class T>
    void forward_gelu(T* out, T* pre_gelu, const T* in, const T* weight, const T* bias, const MatmulShape& shape,
                      cudaStream_t stream);

    // Computes dinp = dout weight; with `accumulate`, dinp += dout weight. Takes batches.
    template <class T>
    void input_gradient(T* dinp, const T* dout, const T* weight, const MatmulShape& shape, bool accumulate,
                        cudaStream_t stream);

    // Computes dinp = (dout weight) * gelu'(pre_gelu), elementwise; pre_gelu(M,K) is from forward_gelu of the layer
    // before. Fused under the same conditions as forward_gelu.
    template <class T>
    void input_gradient_gelu(T* dinp, const T* dout, const T* weight, const T* pre_gelu, const MatmulShape& shape,
                             cudaStream_t stream);

    // Computes dweight = dout^T in; with `accumulate`, +=. Takes batches.
    template <class T, class G>
    void weight_gradient(G* dweight, const T* dout, const T* in, const MatmulShape& shape, bool accumulate,
                         cudaStream_t stream);

    // Computes weight_gradient, and dbias = sum of dout's rows. With `accumulate`, both are added, but dbias perhaps
    // only in add_bias_gradients: until then the sum waits in memory of this object, "workspace/matmul bias sums". One
    // pass over dout where cuBLASLt has an algorithm for both (`unfused` lists where it has none); two passes with
    // `accumulate` in bf16, whose sum would be rounded twice.
    template <class T, class G>
    void weight_and_bias_gradient(G* dweight, G* dbias, const T* dout, const T* in, const MatmulShape& shape,
                                  bool accumulate, cudaStream_t stream);

    // Leaves so many of the device's multiprocessors, from the next call on, to communication that runs at the same
    // time: a kernel made for all of them would need a second wave. Each number has its own plans.
    void reserve_multiprocessors(int multiprocessors);

    // Adds the waiting bias gradients to their sums in one launch. Must be called before anybody reads the sums.
    void add_bias_gradients(cudaStream_t stream);

    // Computes dbias = sum of dout's rows; with `accumulate`, +=. Uses only M, N and out_stride of the shape.
    template <class T, class G>
    void bias_gradient(G* dbias, const T* dout, const MatmulShape& shape, bool accumulate, cudaStream_t stream);

    // tries_algorithms returns true if algorithms of new problems are timed; stop_trying ends that for all later
    // problems. With try_weight_gradients_only other problems run with the heuristic's first meanwhile, and are timed
    // when they are met again without it.
    bool tries_algorithms() const;
    void try_weight_gradients_only(bool only);
    void stop_trying();

    // Return the algorithms of all problems met so far, ordered by name, and take them back, for example from another
    // rank or a checkpoint. Problems named there use the given algorithm; all others choose one. A problem also chooses
    // one if cuBLASLt refuses the given algorithm here, or if it needs more workspace than there is:
    // `refused_algorithms` says which and why, one sentence each, as they are met.
    std::vector<MatmulAlgorithm> algorithms() const;
    void use_algorithms(std::span<const MatmulAlgorithm> algorithms);
    const std::vector<std::string>& refused_algorithms() const;

    // Returns why matmuls met so far have GELU, residual or bias gradient in a kernel of its own though it was to be
    // fused: one sentence for each problem that cuBLASLt has no algorithm for.
    std::vector<std::string> unfused() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};
