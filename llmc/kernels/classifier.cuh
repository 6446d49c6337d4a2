// Softmax cross-entropy of rows of logits, with the gradient written over the logits: probabilities never exist in
// memory.
//
// A call handles any number of rows, so the classifier can run in chunks. The vocabulary is padded: a row has Vp logits
// of which the first V count; the padded columns get zero gradient.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ordered_sum.cuh"
#include "llmc/kernels/reduce.cuh"
#include "llmc/kernels/vec.cuh"

enum class ClassifierOutput {
    loss,                // validation: logits stay as they are
    loss_and_gradient,   // logits are replaced by their gradient
};

template <class Real>
struct Classifier {
    Real* logits;         // (rows, Vp)
    float* losses;        // (rows) overwritten: -log softmax(logits)[target]; 0 where the target is negative (ignored)
    const int* targets;   // (rows) in [0, V), or negative: no loss, zero gradient
    int rows, V, Vp;
    float dloss;   // gradient of the total loss by one row's loss: 1 / global number of tokens
    ClassifierOutput output;
};

template <class Real>
void fused_classifier(const Classifier<Real>& args, cudaStream_t stream);

// total[0] = scale * sum(losses[0 .. n-1]) on the device, in a fixed order; added to what is there when `accumulate`.
inline void sum_losses(double* total, const float* losses, int n, float scale, bool accumulate, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------
// A row belongs to one block. First every thread finds the largest logit of its columns and the sum of exponentials
// relative to it, in one pass (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), then the
// block combines them. The parts are functions of their own so that a vocabulary cut over ranks can combine between
// them.

// Where a row fits, the block keeps it in shared memory between the two passes, so that it is read from memory once; each
// thread reads there what it wrote itself. (Two blocks then fill a multiprocessor.)

constexpr int kClassifierThreads = 1024;

struct SoftmaxPart {
    float max;   // of the logits seen; -FLT_MAX when none was
    float sum;   // of exp(logit - max)
};

// This thread's share of the first V columns of a row; they are copied to `kept`, unless that is null.
template <class Real>
__device__ __forceinline__ SoftmaxPart softmax_part(const Real* logits, int V, Extent extent, Real* kept = nullptr) {
    SoftmaxPart part = {-FLT_MAX, 0.0f};
    for (int c = static_cast<int>(threadIdx.x) * 8; c < V; c += static_cast<int>(blockDim.x) * 8) {
        const Vec8<Real> piece = load8(logits, c, extent);
        if (kept) store8(kept, c, extent, piece);
        Vec8<float> x = to_floats(piece);
        if (c + 8 > V) {
            VECTOR_LOOP
            for (int k = 0; k < 8; k++) x[k] = c + k < V ? x[k] : -INFINITY;
        }
        const float max = max8(x);
        if (max > part.max) part = {max, part.sum * exp_for<Real>(part.max - max)};   // seldom, after the first few
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) x[k] = exp_for<Real>(x[k] - part.max);
        part.sum += sum8(x);
    }
    return part;
}

// The whole row's, given to every thread of the block.
template <class Real>
__device__ __forceinline__ SoftmaxPart combine_softmax_parts(SoftmaxPart part) {
    const float max = block_max(part.max);
    return {max, block_sum(part.sum * exp_for<Real>(part.max - max))};
}

// Replaces this thread's share of a row's Vp logits by the gradient (softmax - [column is target]) * dloss. Columns that
// count are read where softmax_part has kept them, if it has.
template <class Real>
__device__ __forceinline__ void write_logit_gradient(Real* logits, SoftmaxPart softmax, int target, float dloss, int V,
                                                     Extent extent, const Real* kept = nullptr) {
    const float scale = dloss / softmax.sum;
    for (int c = static_cast<int>(threadIdx.x) * 8; c < extent.count; c += static_cast<int>(blockDim.x) * 8) {
        Vec8<float> x = to_floats(kept ? load8(kept, c, extent) : load8<Cache::stream>(logits, c, extent));
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) {
            const float probability = exp_for<Real>(x[k] - softmax.max) * scale;
            const float gradient = probability - (c + k == target ? dloss : 0.0f);
            x[k] = c + k < V ? gradient : 0.0f;
        }
        store8(logits, c, extent, round_to<Real>(x));
    }
}

template <class Real, bool keeps_row>
__global__ void __launch_bounds__(kClassifierThreads) fused_classifier_kernel(Classifier<Real> args, Extent extent) {
    DYNAMIC_SHARED(Real, row_of_block);
    Real* const kept = keeps_row ? row_of_block : nullptr;
    // the last rows first: the matmul wrote them last, they may still be in cache
    const std::int64_t row = gridDim.x - 1 - blockIdx.x;
    Real* logits = args.logits + row * args.Vp;
    const int target = args.targets[row];
    const bool gradient = args.output == ClassifierOutput::loss_and_gradient;
    if (target < 0) {
        if (threadIdx.x == 0) args.losses[row] = 0.0f;
        for (int c = static_cast<int>(threadIdx.x) * 8; gradient && c < args.Vp;
             c += static_cast<int>(blockDim.x) * 8) {
            store8(logits, c, extent, round_to<Real>(Vec8<float>{}));
        }
        return;
    }
    const float target_logit = static_cast<float>(logits[target]);   // the block reductions lie between this and the overwriting
    const SoftmaxPart softmax = combine_softmax_parts<Real>(softmax_part(logits, args.V, extent, kept));
    if (threadIdx.x == 0) args.losses[row] = logf(softmax.sum) + (softmax.max - target_logit);
    if (gradient) write_logit_gradient(logits, softmax, target, args.dloss, args.V, extent, kept);
}

// Enough threads for a row, in whole warps.
inline dim3 classifier_block(int Vp) {
    int threads = (Vp + 255) / 256 * 32;
    return loop_threads(static_cast<unsigned>(threads < kClassifierThreads ? threads : kClassifierThreads));
}

// Whether a block has so much shared memory, beside what its reductions take.
inline bool fits_shared_memory(std::size_t bytes) {
    int device = 0, most = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes + 1024 <= static_cast<std::size_t>(most);   // where dynamic memory begins, beside these
}

template <class Real>
void fused_classifier(const Classifier<Real>& args, cudaStream_t stream) {
    ENSURE(args.V >= 1 && args.Vp >= args.V, "classifier of V=", args.V, " padded to Vp=", args.Vp);
    if (args.rows == 0) return;
    const std::size_t row_bytes = sizeof(Real) * args.Vp, logit_bytes = args.rows * row_bytes;
    const bool gradient = args.output == ClassifierOutput::loss_and_gradient;
    const dim3 block = classifier_block(args.Vp);
    const bool alone = block.x == 1;   // a thread finds what it has just read in its cache
    const bool keeps_row = gradient && !alone && fits_shared_memory(row_bytes);
    Launch where{dim3(static_cast<unsigned>(args.rows)), block, keeps_row ? row_bytes : 0, stream};
    where.reads(args.targets, args.rows * sizeof(int)).writes(args.losses, args.rows * sizeof(float));
    where.reads(args.logits, logit_bytes);
    if (gradient) where.writes(args.logits, logit_bytes);
    if (gradient && !keeps_row && !alone) where.reads(args.logits, logit_bytes);   // once more
    const Extent extent = row_extent(args.Vp, args.logits);
    if (keeps_row)
        launch(fused_classifier_kernel<Real, true>, where, args, extent);
    else
        launch(fused_classifier_kernel<Real, false>, where, args, extent);
}

// ---------------------------------------------------------------------------------------------------------------------

template <class Sum>
__global__ void __launch_bounds__(kOrderedSumThreads)
    sum_losses_kernel(Sum* total, const float* losses, int n, float scale, bool accumulate) {
    const double sum = ordered_sum(losses, n);
    if (threadIdx.x == 0) *total = sum * scale + (accumulate ? *total : 0.0);
}

inline void sum_losses(double* total, const float* losses, int n, float scale, bool accumulate, cudaStream_t stream) {
    Launch where{dim3(1), dim3(kOrderedSumThreads), 0, stream};
    where.reads(losses, n * sizeof(float)).writes(total, sizeof(double));
    launch(sum_losses_kernel<double>, where, total, losses, n, scale, accumulate);
}
