#include "llmc/parallel/tensor_parallel.h"

#include "llmc/kernels/classifier_sharded.cuh"

void TensorParallel::set_sizes(const RankSizes& sizes) {
    sizes_ = sizes;
    ENSURE(!sequence_parallel() || (sizes.residual_parts == group_.size() && sizes.rows() % group_.size() == 0),
           sizes.rows(), " rows cannot be shared by ", group_.size(), " tp ranks");
    if (loss_.size() > 0) {
        ENSURE(static_cast<std::size_t>(sizes.rows()) * 3 <= loss_.size(), "more rows than there is room for");
        return;
    }
    if (sequence_parallel()) {
        entered_ = arena_.allocate<floatX>("workspace/entered columns", elements());
        gradient_ = arena_.allocate<floatX>("workspace/gradient of rows", elements());
    }
    loss_ = arena_.allocate<float>("workspace/vocabulary loss", 3 * static_cast<std::size_t>(sizes.rows()));
}

const floatX* TensorParallel::enter_columns(const floatX* in, cudaStream_t stream) {
    if (!sequence_parallel()) return in;
    group_.all_gather(entered_.data(), in, piece(), stream);
    return entered_.data();
}

floatX* TensorParallel::enter_columns_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t stream) {
    floatX* const result = sum(din, nullptr, stream);
    queue.collective_started();
    return result;
}

floatX* TensorParallel::leave_rows(floatX* out, floatX* to, cudaStream_t stream) { return sum(out, to, stream); }

const floatX* TensorParallel::leave_rows_backward(const floatX* dout, cudaStream_t stream) {
    if (!sequence_parallel()) return dout;
    group_.all_gather(gradient_.data(), dout, piece(), stream);
    return gradient_.data();
}

// This rank's rows of a sum over ranks, where they lie or at `to`; without sequence parallelism all of them, in place.
floatX* TensorParallel::sum(floatX* rows, floatX* to, cudaStream_t stream) {
    if (!sequence_parallel()) {
        ENSURE(to == nullptr || to == rows, "the residual region has all rows: none move");
        group_.all_reduce(rows, elements(), ReduceOp::sum, stream);
        return rows;
    }
    floatX* const own = to ? to : rows + static_cast<std::size_t>(group_.rank()) * piece();
    group_.reduce_scatter(own, rows, piece(), stream);
    return own;
}

void TensorParallel::vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream) {
    const auto rows = static_cast<std::size_t>(arguments.rows);
    const ShardedClassifier<floatX> sharded{arguments, sizes_.first_token, loss_.data(), loss_.data() + rows};
    sharded_classifier_begin(sharded, stream);
    group_.all_reduce(sharded.maxima, rows, ReduceOp::max, stream);
    sharded_classifier_relate(sharded, stream);
    group_.all_reduce(sharded.sums, 2 * rows, ReduceOp::sum, stream);
    sharded_classifier_finish(sharded, stream);
}

// Row by row, because ranks follow each other within a row.
void TensorParallel::gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t stream) {
    const auto columns = static_cast<std::size_t>(sizes_.Vp);
    Communicator::Group together(group_);
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); row++) {
        group_.all_gather(out + row * columns * static_cast<std::size_t>(group_.size()), shard + row * columns, columns,
                          stream);
    }
}
