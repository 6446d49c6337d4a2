// Computes softmax cross-entropy of rows of logits, and writes the gradient over the logits: probabilities never exist
// in memory.
//
// A call handles any number of rows, so the classifier can run in slices. The vocabulary is padded: a row has Vp logits
// of which the first V count; the padded columns get zero gradient.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ordered_sum.cuh"
#include "llmc/kernels/ptx/ptx.cuh"
#include "llmc/kernels/rows/reduce.cuh"
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
    float z_loss = 0;           // c: adds c lse^2 to each row's loss, lse = log of its sum of exponentials (PaLM)
    float* margins = nullptr;   // (rows) largest logit minus the target's, 0 where that is ignored; or null
};

template <class Real>
void fused_classifier(const Classifier<Real>& args, cudaStream_t stream);

// Computes total[0] = scale * sum(losses[0 .. n-1]) on the device, in a fixed order; added to what is there when
// `accumulate`.
inline void sum_losses(double* total, const float* losses, int n, float scale, bool accumulate, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------
// A block handles one row. First every thread finds the largest logit of its columns and the sum of exponentials
// relative to it, in one pass (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), then the
// block combines them. The parts are functions of their own so that a vocabulary cut over ranks can combine between
// them.
//
// If two blocks of a multiprocessor can both keep their rows in shared memory, a row is read from memory once.
// Otherwise it is read again, mostly from the L2 cache.

constexpr int kClassifierThreads = 1024;
constexpr int kPiecesAhead = 4;   // pieces whose copies are under way while a thread waits for one

// The columns of a thread are pieces of eight: first_column(), then every column_step().
__device__ __forceinline__ int first_column() { return static_cast<int>(threadIdx.x) * 8; }
__device__ __forceinline__ int column_step() { return static_cast<int>(blockDim.x) * 8; }

// A row that both passes read from memory. AnyExtent is Extent or PacketExtent, of Vp elements.
template <class Real, class AnyExtent>
class RowInMemory {
public:
    using RowExtent = AnyExtent;
    __device__ __forceinline__ RowInMemory(const Real* logits, int, AnyExtent extent)
        : logits_(logits), extent_(extent) {}
    __device__ __forceinline__ Vec8<Real> first(int c) const { return load8(logits_, c, extent_); }
    __device__ __forceinline__ Vec8<Real> again(int c) const { return load8<Cache::stream>(logits_, c, extent_); }

private:
    const Real* logits_;
    AnyExtent extent_;
};

// A row that the block keeps in shared memory. Each thread copies the pieces that it will read itself, kPiecesAhead
// ahead: no barrier is needed, and many bytes are in flight.
template <class Real>
class RowInSharedMemory {
public:
    using RowExtent = PacketExtent;
    __device__ __forceinline__ RowInSharedMemory(const Real* logits, int V, PacketExtent) : logits_(logits), V_(V) {
        DYNAMIC_SHARED(Real, row_of_block);
        kept_ = row_of_block;
#pragma unroll
        for (int ahead = 0; ahead < kPiecesAhead; ahead++) copy(first_column() + ahead * column_step());
    }
    // Returns the piece at column c < V. Must be called once for each of the thread's columns, in order.
    __device__ __forceinline__ Vec8<Real> first(int c) const {
        copy(c + kPiecesAhead * column_step());
        cp_async_wait<kPiecesAhead>();
        return again(c);
    }
    __device__ __forceinline__ Vec8<Real> again(int c) const { return load_packets<8>(kept_ + c); }

private:
    // Starts the copy of the piece at column c as one copy group, empty beyond V.
    __device__ __forceinline__ void copy(int c) const {
        if (c < V_) {
#pragma unroll
            for (int packet = 0; packet < Vec8<Real>::packets; packet++) {
                const int column = c + packet * Packed<Real>::size;
                cp_async_16(shared_address(kept_ + column), logits_ + column, true);
            }
        }
        cp_async_commit();
    }

    const Real* logits_;
    Real* kept_;
    int V_;
};

struct SoftmaxPart {
    float max;   // largest logit seen; kBelowLogits when none was larger
    float sum;   // sum of ExpRelativeTo(max)(logit)
};
constexpr float kBelowLogits = -1e38f;

template <class Real>
__device__ __forceinline__ SoftmaxPart with_piece(SoftmaxPart part, Vec8<float> x) {
    const float max = max8(x);
    // Rarely true after the first few pieces.
    if (max > part.max) part = {max, part.sum * ExpRelativeTo<Real>(max).from(part.max)};
    const ExpRelativeTo<Real> exp(part.max);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = exp(x[k]);
    part.sum += sum8(x);
    return part;
}

// Returns the SoftmaxPart of this thread's share of the first V columns of a row.
template <class Real, class Row>
__device__ __forceinline__ SoftmaxPart softmax_part(const Row& row, int V) {
    SoftmaxPart part = {kBelowLogits, 0.0f};
    int c = first_column();
    for (; c + 8 <= V; c += column_step()) part = with_piece<Real>(part, to_floats(row.first(c)));
    if (c < V) {   // the piece that holds the end
        Vec8<float> x = to_floats(row.first(c));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = c + k < V ? x[k] : -INFINITY;
        part = with_piece<Real>(part, x);
    }
    return part;
}

// Returns the whole row's SoftmaxPart to every thread of the block.
template <class Real>
__device__ __forceinline__ SoftmaxPart combine_softmax_parts(SoftmaxPart part) {
    const float max = block_max(part.max);
    return {max, block_sum(part.sum * ExpRelativeTo<Real>(max).from(part.max))};
}

// Returns the logarithm of the sum of exponentials, minus the largest logit. The sum is divided by the largest logit's
// own term in it, which is one but for rounding.
template <class Real>
__device__ __forceinline__ float log_sum_exp_above_max(SoftmaxPart softmax) {
    return logf(softmax.sum / ExpRelativeTo<Real>(softmax.max)(softmax.max));
}

// Returns -log softmax[target] + z_loss lse^2.
template <class Real>
__device__ __forceinline__ float cross_entropy_loss(SoftmaxPart softmax, float target_logit, float z_loss) {
    const float above = log_sum_exp_above_max<Real>(softmax), lse = above + softmax.max;
    return above + (softmax.max - target_logit) + z_loss * lse * lse;
}

// Target's column and logit; a column outside the row means no target.
struct TargetLogit {
    int column;
    float logit;
};

// Replaces this thread's share of a row's Vp logits by the gradient of dloss times its loss:
// (softmax (1 + 2 z_loss lse) - [column is target]) * dloss.
template <class Real, class Row, class AnyExtent>
__device__ __forceinline__ void write_logit_gradient(Real* logits, const Row& row, SoftmaxPart softmax,
                                                     TargetLogit target, float dloss, float z_loss, int V,
                                                     AnyExtent extent) {
    const ExpRelativeTo<Real> exp(softmax.max);
    const float lse = log_sum_exp_above_max<Real>(softmax) + softmax.max;
    const float scale = dloss * (1.0f + 2.0f * z_loss * lse) / softmax.sum;
    int c = first_column();
    for (; c + 8 <= V; c += column_step()) {
        Vec8<float> x = to_floats(row.again(c));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = exp(x[k]) * scale;
        store8(logits, c, extent, round_to<Real>(x));
    }
    for (; c < extent.count; c += column_step()) {   // the row's end, and padding
        Vec8<float> x = c < V ? to_floats(row.again(c)) : Vec8<float>{};
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = c + k < V ? exp(x[k]) * scale : 0.0f;
        store8(logits, c, extent, round_to<Real>(x));
    }
    // Writes the target's column again, by the thread that has written it.
    const unsigned column = static_cast<unsigned>(target.column);
    if (column < static_cast<unsigned>(V) && column / 8 % blockDim.x == threadIdx.x) {
        logits[column] = static_cast<Real>(exp(target.logit) * scale - dloss);
    }
}

// Writes a zero gradient for a row that is ignored.
template <class Real, class AnyExtent>
__device__ __forceinline__ void write_no_gradient(Real* logits, AnyExtent extent) {
    for (int c = first_column(); c < extent.count; c += column_step()) {
        store8(logits, c, extent, round_to<Real>(Vec8<float>{}));
    }
}

template <class Real, class Row>
__global__ void __launch_bounds__(kClassifierThreads)
    fused_classifier_kernel(Classifier<Real> args, typename Row::RowExtent extent) {
    // The last rows come first: the matmul wrote them last, so they may still be in cache.
    const std::int64_t index = gridDim.x - 1 - blockIdx.x;
    Real* logits = args.logits + index * args.Vp;
    const int target = args.targets[index];
    const bool gradient = args.output == ClassifierOutput::loss_and_gradient;
    if (target < 0) {
        if (threadIdx.x == 0) args.losses[index] = 0.0f;
        if (threadIdx.x == 0 && args.margins != nullptr) args.margins[index] = 0.0f;
        if (gradient) write_no_gradient(logits, extent);
        return;
    }
    const Row row(logits, args.V, extent);
    // Block reductions separate this read from the overwriting.
    const float target_logit = static_cast<float>(logits[target]);
    const SoftmaxPart softmax = combine_softmax_parts<Real>(softmax_part<Real>(row, args.V));
    if (threadIdx.x == 0) args.losses[index] = cross_entropy_loss<Real>(softmax, target_logit, args.z_loss);
    if (threadIdx.x == 0 && args.margins != nullptr) args.margins[index] = softmax.max - target_logit;
    if (!gradient) return;
    write_logit_gradient(logits, row, softmax, {target, target_logit}, args.dloss, args.z_loss, args.V, extent);
}

// Returns enough threads for a row, in whole warps.
inline dim3 classifier_block(int Vp) {
    int threads = (Vp + 255) / 256 * 32;
    return loop_threads(static_cast<unsigned>(threads < kClassifierThreads ? threads : kClassifierThreads));
}

// Returns true if two blocks of a multiprocessor can have so much shared memory each, beside the needs of their
// reductions and CUDA.
inline bool two_blocks_have(std::size_t shared_bytes) {
    int device = 0, bytes = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    return 2 * (shared_bytes + 2048) <= static_cast<std::size_t>(bytes);
}

template <class Real>
void fused_classifier(const Classifier<Real>& args, cudaStream_t stream) {
    ENSURE(args.V >= 1 && args.Vp >= args.V, "classifier of V=", args.V, " padded to Vp=", args.Vp);
    if (args.rows == 0) return;
    const std::size_t row_bytes = sizeof(Real) * args.Vp, logit_bytes = args.rows * row_bytes;
    const bool gradient = args.output == ClassifierOutput::loss_and_gradient;
    const dim3 block = classifier_block(args.Vp);
    const Extent extent = row_extent(args.Vp, args.logits);
    const bool alone = block.x == 1;   // a thread finds what it has just read in its cache
    const bool keeps_row = gradient && !alone && extent.packets && two_blocks_have(row_bytes);
    Launch where{dim3(static_cast<unsigned>(args.rows)), block, keeps_row ? row_bytes : 0, stream};
    where.reads(args.targets, args.rows * sizeof(int)).writes(args.losses, args.rows * sizeof(float));
    where.reads(args.logits, logit_bytes);
    if (args.margins != nullptr) where.writes(args.margins, args.rows * sizeof(float));
    if (gradient) where.writes(args.logits, logit_bytes);
    if (gradient && !keeps_row && !alone) where.reads(args.logits, logit_bytes);   // the row is read again
    if (keeps_row) {
        launch(fused_classifier_kernel<Real, RowInSharedMemory<Real>>, where, args, PacketExtent{args.Vp});
        return;
    }
    with_extent_type(extent, [&](auto known) {
        launch(fused_classifier_kernel<Real, RowInMemory<Real, decltype(known)>>, where, args, known);
    });
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
