// Computes softmax cross-entropy of rows of logits whose columns are cut over ranks (vocabulary parallelism: Shoeybi et
// al., "Megatron-LM", 2019, section 3). Makes the same two passes over the logits as fused_classifier (classifier.cuh);
// between them the ranks combine two numbers per row. Logits are never gathered.
//
//   begin    largest logit m of this rank's columns, and the sum s of exponentials relative to it
//            -> the ranks take the largest m
//   relate   s relative to that; the target's logit on the rank that has its column, 0 on the others
//            -> the ranks add both up
//   finish   loss and gradient, from numbers that are now the same on all ranks
#pragma once

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows/classifier.cuh"

template <class Real>
struct ShardedClassifier {
    Classifier<Real> shard;   // this rank's Vp columns, V of them real (maybe none); targets are global
    int first_token;          // token of column 0
    float* maxima;            // (rows): this rank's after begin; all ranks' before relate
    float* sums;              // (2, rows): sums of exponentials, target logits; all ranks' before finish
};

template <class Real>
void sharded_classifier_begin(const ShardedClassifier<Real>& args, cudaStream_t stream);
template <class Real>
void sharded_classifier_relate(const ShardedClassifier<Real>& args, cudaStream_t stream);
// Writes losses, the same on all ranks, and if asked for the gradient over the logits.
template <class Real>
void sharded_classifier_finish(const ShardedClassifier<Real>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// The second half of `sums` keeps this rank's own maximum until sharded_classifier_relate() replaces it.
template <class Real, class AnyExtent>
__global__ void __launch_bounds__(kClassifierThreads)
    sharded_classifier_begin_kernel(ShardedClassifier<Real> args, AnyExtent extent) {
    const std::int64_t row = gridDim.x - 1 - blockIdx.x;   // the last rows first, as in fused_classifier_kernel
    SoftmaxPart softmax = {0.0f, 0.0f};
    if (args.shard.targets[row] >= 0) {
        const RowInMemory<Real, AnyExtent> logits(args.shard.logits + row * args.shard.Vp, args.shard.V, extent);
        softmax = combine_softmax_parts<Real>(softmax_part<Real>(logits, args.shard.V));
    }
    if (threadIdx.x != 0) return;
    args.maxima[row] = softmax.max;
    args.sums[row] = softmax.sum;
    args.sums[args.shard.rows + row] = softmax.max;
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) sharded_classifier_relate_kernel(ShardedClassifier<Real> args) {
    const int row = static_cast<int>(blockIdx.x * kElementwiseThreads + threadIdx.x);
    if (row >= args.shard.rows) return;
    const float own_max = args.sums[args.shard.rows + row];
    const int column = args.shard.targets[row] - args.first_token;   // the target's, if this rank has it
    const bool here = args.shard.targets[row] >= 0 && column >= 0 && column < args.shard.V;
    const Real* logits = args.shard.logits + static_cast<std::int64_t>(row) * args.shard.Vp;
    args.sums[row] *= ExpRelativeTo<Real>(args.maxima[row]).from(own_max);
    args.sums[args.shard.rows + row] = here ? static_cast<float>(logits[column]) : 0.0f;
}

template <class Real, class AnyExtent>
__global__ void __launch_bounds__(kClassifierThreads)
    sharded_classifier_finish_kernel(ShardedClassifier<Real> args, AnyExtent extent) {
    const std::int64_t row = blockIdx.x;
    const int target = args.shard.targets[row];
    const float target_logit = args.sums[args.shard.rows + row];
    const SoftmaxPart softmax = {args.maxima[row], args.sums[row]};
    if (threadIdx.x == 0) {
        args.shard.losses[row] = target < 0 ? 0.0f : cross_entropy_loss<Real>(softmax, target_logit, args.shard.z_loss);
        if (args.shard.margins != nullptr) args.shard.margins[row] = target < 0 ? 0.0f : softmax.max - target_logit;
    }
    if (args.shard.output == ClassifierOutput::loss) return;
    Real* logits = args.shard.logits + row * args.shard.Vp;
    if (target < 0) return write_no_gradient(logits, extent);
    write_logit_gradient(logits, RowInMemory<Real, AnyExtent>(logits, args.shard.V, extent), softmax,
                         {target - args.first_token, target_logit}, args.shard.dloss, args.shard.z_loss, args.shard.V,
                         extent);
}

template <class Real>
Launch sharded_classifier_launch(const ShardedClassifier<Real>& args, dim3 grid, dim3 block, bool changes_logits,
                                 cudaStream_t stream) {
    const std::size_t rows = static_cast<std::size_t>(args.shard.rows);
    const std::size_t logit_bytes = sizeof(Real) * rows * static_cast<std::size_t>(args.shard.Vp);
    Launch where{grid, block, 0, stream};
    where.reads(args.shard.targets, rows * sizeof(int));
    where.reads(args.shard.logits, logit_bytes);
    if (changes_logits) where.writes(args.shard.logits, logit_bytes);
    return where;
}

template <class Real>
void sharded_classifier_begin(const ShardedClassifier<Real>& args, cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(args.shard.rows);
    if (rows == 0) return;
    Launch where = sharded_classifier_launch(args, dim3(rows), classifier_block(args.shard.Vp), false, stream);
    where.writes(args.maxima, rows * sizeof(float)).writes(args.sums, 2 * rows * sizeof(float));
    with_extent_type(row_extent(args.shard.Vp, args.shard.logits), [&](auto known) {
        launch(sharded_classifier_begin_kernel<Real, decltype(known)>, where, args, known);
    });
}

template <class Real>
void sharded_classifier_relate(const ShardedClassifier<Real>& args, cudaStream_t stream) {
    const auto rows = static_cast<std::size_t>(args.shard.rows);
    if (rows == 0) return;
    Launch where = sharded_classifier_launch(args, dim3(blocks_for(args.shard.rows, kElementwiseThreads)),
                                             dim3(kElementwiseThreads), false, stream);
    where.reads(args.maxima, rows * sizeof(float)).writes(args.sums, 2 * rows * sizeof(float));
    launch(sharded_classifier_relate_kernel<Real>, where, args);
}

template <class Real>
void sharded_classifier_finish(const ShardedClassifier<Real>& args, cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(args.shard.rows);
    if (rows == 0) return;
    const bool gradient = args.shard.output == ClassifierOutput::loss_and_gradient;
    Launch where = sharded_classifier_launch(args, dim3(rows), classifier_block(args.shard.Vp), gradient, stream);
    where.reads(args.maxima, rows * sizeof(float)).reads(args.sums, 2 * rows * sizeof(float));
    where.writes(args.shard.losses, rows * sizeof(float));
    if (args.shard.margins != nullptr) where.writes(args.shard.margins, rows * sizeof(float));
    with_extent_type(row_extent(args.shard.Vp, args.shard.logits), [&](auto known) {
        launch(sharded_classifier_finish_kernel<Real, decltype(known)>, where, args, known);
    });
}
