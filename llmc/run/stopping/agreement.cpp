#include "llmc/run/stopping/agreement.h"

#include <algorithm>

#include "llmc/base/check.h"
#include "llmc/base/stream.h"

namespace {

constexpr std::size_t values_at_once = 256;

}   // namespace

Agreement::Agreement(Arena& arena, Communicator* all, World* world, const StopSignals& signals, cudaStream_t stream)
    : all_(all),
      world_(world),
      signals_(signals),
      stream_(stream),
      sums_(arena.allocate<double>("step/agreement", values_at_once)) {
    ENSURE(world == nullptr || world->ranks() == ranks(), "requests to stop are summed over ", ranks(), " of ",
           world->ranks(), " ranks; the others would not hear of them");
}

double Agreement::sum() {
    const StopVotes own = own_vote();
    sums_.upload(std::vector<double>{own.asking, own.rank_sum}, stream_, 1);
    if (all_) all_->all_reduce(sums_.data(), 3, ReduceOp::sum, stream_);
    const std::vector<double> sums = sums_.download(stream_, 0, 3);
    if (world_) world_->synchronised();
    stop_ = {sums[1], sums[2]};
    return sums[0];
}

double Agreement::sum(double own) {
    sums_.upload(std::vector<double>{own}, stream_);
    return sum();
}

void Agreement::sum(std::span<double> values) {
    if (all_ == nullptr) return;
    for (std::size_t begin = 0; begin < values.size(); begin += values_at_once) {
        const std::span<double> slice = values.subspan(begin, std::min(values_at_once, values.size() - begin));
        sums_.upload(slice, stream_);
        all_->all_reduce(sums_.data(), slice.size(), ReduceOp::sum, stream_);
        std::ranges::copy(sums_.download(stream_, 0, slice.size()), slice.begin());
        if (world_) world_->synchronised();
    }
}

std::vector<std::string> Agreement::gather(const std::string& own) {
    if (all_ == nullptr || world_ == nullptr) return {own};
    all_->all_reduce(sums_.data(), 1, ReduceOp::sum, stream_);   // waits for the last rank, where the watchdog sees it
    wait_for(stream_);
    world_->synchronised();
    return world_->gather_text(own);
}
