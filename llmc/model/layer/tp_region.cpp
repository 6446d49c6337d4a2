#include "llmc/model/layer/tp_region.h"

TpRegion::TpRegion(Communicator* group, bool shares_rows, int chunks, Arena& arena, cudaStream_t compute)
    : group_(group),
      shares_rows_(shares_rows),
      wanted_chunks_(chunks),
      arena_(arena),
      compute_(compute),
      gathered_chunks_(static_cast<std::size_t>(chunks)) {
    ENSURE(chunks >= 1, chunks, " chunks of rows");
    ENSURE(group || !shares_rows, "rows shared without a group");
}

void TpRegion::set_sizes(const RankSizes& sizes) {
    sizes_ = sizes;
    prefetched_ = nullptr;
    ENSURE(!shares_rows_ || (sizes.residual_parts == group_->size() && sizes.rows() % group_->size() == 0),
           sizes.rows(), " rows cannot be shared by ", group_->size(), " tp ranks");
    if (group_) chunks_ = tensor_chunks(sizes.rows(), sizes.residual_parts, wanted_chunks_);
    if (!shares_rows_) return;
    if (gathered_.size() > 0) {
        ENSURE(elements(sizes.rows()) <= gathered_.size(), "more rows than there is room for");
        return;
    }
    gathered_ = arena_.allocate<floatX>("workspace/entered columns", elements(sizes.rows()));
    gradient_ = arena_.allocate<floatX>("workspace/gradient of rows", elements(sizes.rows()));
    if (wanted_chunks_ > 1) own_rows_ = arena_.allocate<floatX>("workspace/own rows", elements(sizes.residual_rows()));
}

Rows TpRegion::rows_of(int chunk) const {
    const int count = sizes_.rows() / chunks_;
    return {chunk * count, count};
}

// Makes traffic queued from now on follow all work of the compute stream until now.
void TpRegion::traffic_after_compute() const {
    computed_.record(compute_);
    computed_.wait(traffic_.get());
}

// ---------------------------------------------------------------------------------------------------------------------
// Gathers of rows

void TpRegion::gather_chunk(floatX* to, const floatX* from, int chunk) {
    const Rows rows = rows_of(chunk);
    const std::size_t count = elements(rows.count / sizes_.residual_parts);
    group_->all_gather(to + elements(rows.first), from + static_cast<std::size_t>(chunk) * count, count,
                       traffic_.get());
}

void TpRegion::gather_all(floatX* to, const floatX* from) {
    Communicator::Group together(*group_);
    for (int i = 0; i < chunks_; i++) gather_chunk(to, from, i);
}

const floatX* TpRegion::begin_gather(const floatX* in) {
    if (!shares_rows_) return in;
    prefetched_ = nullptr;
    traffic_after_compute();
    for (int i = 0; i < chunks_; i++) {
        gather_chunk(gathered_.data(), in, i);
        gathered_chunks_[static_cast<std::size_t>(i)].record(traffic_.get());
    }
    return gathered_.data();
}

Rows TpRegion::wait_for_gathered(int chunk) {
    if (!shares_rows_) return {0, sizes_.rows()};
    gathered_chunks_[static_cast<std::size_t>(chunk)].wait(compute_);
    return rows_of(chunk);
}

void TpRegion::prefetch(const floatX* in) {
    if (!shares_rows_) return;
    traffic_after_compute();
    gather_all(gathered_.data(), in);
    gathered_all_.record(traffic_.get());
    prefetched_ = in;
}

const floatX* TpRegion::gather(const floatX* in) {
    if (!shares_rows_) return in;
    if (prefetched_ != in) prefetch(in);
    prefetched_ = nullptr;
    gathered_all_.wait(compute_);
    return gathered_.data();
}

const floatX* TpRegion::gather_gradient(const floatX* dout, WeightGradientQueue& queue) {
    if (!shares_rows_) return dout;
    traffic_after_compute();
    gather_all(gradient_.data(), dout);
    gathered_gradient_.record(traffic_.get());
    queue.collective_started(1);
    gathered_gradient_.wait(compute_);
    return gradient_.data();
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums of rows

// Returns where this rank's rows of a sum go: `to`, or memory of the region if null. Without sequence parallelism all
// rows stay in place.
floatX* TpRegion::place_of_sums(floatX* parts, floatX* to) const {
    if (!shares_rows_) {
        ENSURE(to == nullptr || to == parts, "the residual region has all rows: none move");
        return parts;
    }
    if (to != nullptr) return to;
    if (chunks_ > 1) return own_rows_.data();
    return parts + elements(group_->rank() * sizes_.residual_rows());
}

void TpRegion::sum_chunk(floatX* to, floatX* parts, int chunk) {
    const Rows rows = rows_of(chunk);
    floatX* const first = parts + elements(rows.first);
    if (!shares_rows_) return group_->all_reduce(first, elements(rows.count), ReduceOp::sum, traffic_.get());
    const std::size_t count = elements(rows.count / sizes_.residual_parts);
    group_->reduce_scatter(to + static_cast<std::size_t>(chunk) * count, first, count, traffic_.get());
}

void TpRegion::begin_sum(floatX* parts, floatX* to, int chunk) {
    if (!group_) return;
    traffic_after_compute();
    sum_chunk(place_of_sums(parts, to), parts, chunk);
}

floatX* TpRegion::wait_for_sums(floatX* parts, floatX* to) {
    if (group_) {
        summed_.record(traffic_.get());
        summed_.wait(compute_);
    }
    return place_of_sums(parts, to);
}

floatX* TpRegion::sum_gradient(floatX* din, WeightGradientQueue& queue) {
    if (!group_) {
        // Nothing travels here. What waits does so for a ring, whose last hop of dK and dV has no attention to hide
        // behind: one gradient of weights (fc's, the largest) is kept back for it, beside attproj's.
        queue.collective_started(1);
        return din;
    }
    floatX* const sums = place_of_sums(din, nullptr);
    traffic_after_compute();
    {
        Communicator::Group together(*group_);
        for (int i = 0; i < chunks_; i++) sum_chunk(sums, din, i);
    }
    summed_.record(traffic_.get());
    // Without sequence parallelism a gradient of weights may read the residual stream's gradient, which changes next.
    queue.collective_started(shares_rows_ ? 1 : WeightGradientQueue::all);
    summed_.wait(compute_);
    return sums;
}

void TpRegion::add_over_ranks(float* sums, std::size_t count) {
    if (group_) group_->all_reduce(sums, count, ReduceOp::sum, compute_);
}
