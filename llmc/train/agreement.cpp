#include "llmc/train/agreement.h"

#include "llmc/base/check.h"

Agreement::Agreement(Arena& arena, Communicator* all, World* world, const StopSignals& signals, cudaStream_t stream)
    : all_(all), world_(world), signals_(signals), stream_(stream), sums_(arena.allocate<double>("step/agreement", 3)) {
    ENSURE(world == nullptr || world->ranks() == ranks(), "requests to stop are summed over ", ranks(), " of ",
           world->ranks(), " ranks; the others would not hear of them");
}

double Agreement::sum() {
    const StopVotes own = own_vote();
    sums_.upload(std::vector<double>{own.asking, own.rank_sum}, stream_, 1);
    if (all_) all_->all_reduce(sums_.data(), sums_.size(), ReduceOp::sum, stream_);
    const std::vector<double> sums = sums_.download(stream_);
    if (world_) world_->synchronised();
    stop_ = {sums[1], sums[2]};
    return sums[0];
}

double Agreement::sum(double own) {
    sums_.upload(std::vector<double>{own}, stream_);
    return sum();
}

std::uint64_t Agreement::whole_sum(std::uint64_t own) {
    if (all_ == nullptr) return own;
    auto* const number = reinterpret_cast<std::uint64_t*>(sums_.data());
    CUDA_CHECK(cudaMemcpyAsync(number, &own, sizeof own, cudaMemcpyHostToDevice, stream_));
    all_->all_reduce(number, 1, ReduceOp::sum, stream_);
    CUDA_CHECK(cudaMemcpyAsync(&own, number, sizeof own, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (world_) world_->synchronised();
    return own;
}
