#include "llmc/parallel/tensor_parallel.h"

#include "llmc/kernels/rows/classifier_sharded.cuh"

TensorParallel::TensorParallel(Communicator& group, int chunks, Arena& arena)
    : group_(group), wanted_chunks_(chunks), arena_(arena), entered_chunks_(static_cast<std::size_t>(chunks)) {
    ENSURE(chunks >= 1, chunks, " chunks of rows");
}

void TensorParallel::set_sizes(const RankSizes& sizes) {
    sizes_ = sizes;
    ENSURE(!sequence_parallel() || (sizes.residual_parts == group_.size() && sizes.rows() % group_.size() == 0),
           sizes.rows(), " rows cannot be shared by ", group_.size(), " tp ranks");
    chunks_ = tensor_chunks(sizes.rows(), sizes.residual_parts, wanted_chunks_);
    announced_ = nullptr;
    if (loss_.size() > 0) {
        ENSURE(static_cast<std::size_t>(sizes.rows()) * 3 <= loss_.size(), "more rows than there is room for");
        return;
    }
    if (sequence_parallel()) {
        entered_ = arena_.allocate<floatX>("workspace/entered columns", elements(sizes.rows()));
        gradient_ = arena_.allocate<floatX>("workspace/gradient of rows", elements(sizes.rows()));
        if (wanted_chunks_ > 1) {
            own_rows_ = arena_.allocate<floatX>("workspace/own rows", elements(sizes.residual_rows()));
        }
    }
    loss_ = arena_.allocate<float>("workspace/vocabulary loss", 3 * static_cast<std::size_t>(sizes.rows()));
}

Rows TensorParallel::chunk(int index) const {
    const int count = sizes_.rows() / chunks_;
    return {index * count, count};
}

// Makes traffic queued from now on follow all work of the compute stream until now.
void TensorParallel::traffic_after(cudaStream_t compute) const {
    computed_.record(compute);
    computed_.wait(traffic_.get());
}

// ---------------------------------------------------------------------------------------------------------------------
// Gathers of rows

void TensorParallel::gather_chunk(floatX* to, const floatX* from, int index) {
    const Rows rows = chunk(index);
    const std::size_t count = elements(rows.count / sizes_.residual_parts);
    group_.all_gather(to + elements(rows.first), from + static_cast<std::size_t>(index) * count, count, traffic_.get());
}

void TensorParallel::gather(floatX* to, const floatX* from) {
    Communicator::Group together(group_);
    for (int i = 0; i < chunks_; i++) gather_chunk(to, from, i);
}

void TensorParallel::gather_to_tp(const floatX* in, int rows, const GatheredWork& work, cudaStream_t stream) {
    ENSURE(rows == sizes_.rows(), rows, " rows enter, not ", sizes_.rows());
    if (!sequence_parallel()) return work(in, {0, rows});
    announced_ = nullptr;
    traffic_after(stream);
    for (int i = 0; i < chunks_; i++) {
        gather_chunk(entered_.data(), in, i);
        entered_chunks_[static_cast<std::size_t>(i)].record(traffic_.get());
    }
    for (int i = 0; i < chunks_; i++) {
        entered_chunks_[static_cast<std::size_t>(i)].wait(stream);
        work(entered_.data(), chunk(i));
    }
}

void TensorParallel::will_gather_to_tp(const floatX* in, cudaStream_t stream) {
    if (!sequence_parallel()) return;
    traffic_after(stream);
    gather(entered_.data(), in);
    entered_all_.record(traffic_.get());
    announced_ = in;
}

const floatX* TensorParallel::gather_to_tp(const floatX* in, cudaStream_t stream) {
    if (!sequence_parallel()) return in;
    if (announced_ != in) will_gather_to_tp(in, stream);
    announced_ = nullptr;
    entered_all_.wait(stream);
    return entered_.data();
}

const floatX* TensorParallel::reduce_from_tp_backward(const floatX* dout, WeightGradientQueue& queue,
                                                      cudaStream_t stream) {
    if (!sequence_parallel()) return dout;
    traffic_after(stream);
    gather(gradient_.data(), dout);
    gathered_.record(traffic_.get());
    queue.collective_started(1);
    gathered_.wait(stream);
    return gradient_.data();
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums of rows

// Returns where this rank's rows of a sum go: `to`, or memory of its own if null. Without sequence parallelism all rows
// stay in place.
floatX* TensorParallel::place_of_sum(floatX* rows, floatX* to) const {
    if (!sequence_parallel()) {
        ENSURE(to == nullptr || to == rows, "the residual region has all rows: none move");
        return rows;
    }
    if (to != nullptr) return to;
    if (chunks_ > 1) return own_rows_.data();
    return rows + elements(group_.rank() * sizes_.residual_rows());
}

void TensorParallel::sum_chunk(floatX* to, floatX* rows, int index) {
    const Rows part = chunk(index);
    floatX* const first = rows + elements(part.first);
    if (!sequence_parallel()) {
        group_.all_reduce(first, elements(part.count), ReduceOp::sum, traffic_.get());
        return;
    }
    const std::size_t count = elements(part.count / sizes_.residual_parts);
    group_.reduce_scatter(to + static_cast<std::size_t>(index) * count, first, count, traffic_.get());
}

floatX* TensorParallel::reduce_from_tp(floatX* out, floatX* to, int rows, const ReducedWork& work,
                                       cudaStream_t stream) {
    ENSURE(rows == sizes_.rows(), rows, " rows leave, not ", sizes_.rows());
    floatX* const result = place_of_sum(out, to);
    for (int i = 0; i < chunks_; i++) {
        work(chunk(i));
        traffic_after(stream);
        sum_chunk(result, out, i);
    }
    summed_.record(traffic_.get());
    summed_.wait(stream);
    return result;
}

floatX* TensorParallel::gather_to_tp_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t stream) {
    floatX* const result = place_of_sum(din, nullptr);
    traffic_after(stream);
    {
        Communicator::Group together(group_);
        for (int i = 0; i < chunks_; i++) sum_chunk(result, din, i);
    }
    summed_.record(traffic_.get());
    // Without sequence parallelism a gradient of weights may read the residual stream's gradient, which changes next.
    queue.collective_started(sequence_parallel() ? 1 : WeightGradientQueue::all);
    summed_.wait(stream);
    return result;
}

void TensorParallel::sum_rows(float* sums, std::size_t count, cudaStream_t stream) {
    group_.all_reduce(sums, count, ReduceOp::sum, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// The vocabulary

void TensorParallel::vocabulary_loss(const Classifier<floatX>& arguments, cudaStream_t stream) {
    const auto rows = static_cast<std::size_t>(arguments.rows);
    const ShardedClassifier<floatX> sharded{arguments, sizes_.first_token, loss_.data(), loss_.data() + rows};
    sharded_classifier_begin(sharded, stream);
    group_.all_reduce(sharded.maxima, rows, ReduceOp::max, stream);
    sharded_classifier_relate(sharded, stream);
    group_.all_reduce(sharded.sums, 2 * rows, ReduceOp::sum, stream);
    sharded_classifier_finish(sharded, stream);
}

// Gathers row by row, because ranks follow each other within a row.
void TensorParallel::gather_logits(floatX* out, const floatX* shard, int count, cudaStream_t stream) {
    const auto columns = static_cast<std::size_t>(sizes_.Vp);
    Communicator::Group together(group_);
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); row++) {
        group_.all_gather(out + row * columns * static_cast<std::size_t>(group_.size()), shard + row * columns, columns,
                          stream);
    }
}
