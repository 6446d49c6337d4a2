#include "llmc/run/metrics/slowest_rank.h"

#include <algorithm>

#include "llmc/base/log.h"

Waiting slowest_rank(const MeshShape& mesh, std::span<const double> seconds, double step_seconds) {
    ENSURE(mesh.dp > 1 && seconds.size() == static_cast<std::size_t>(mesh.size()), seconds.size(), " times of ranks");
    std::vector<double> replicas(static_cast<std::size_t>(mesh.dp));   // time of its last rank
    int rank = 0;
    for (int r = 0; r < mesh.size(); r++) {
        const double time = seconds[static_cast<std::size_t>(r)];
        double& replica = replicas[static_cast<std::size_t>(coordinates_of(mesh, r).dp)];
        replica = std::max(replica, time);
        if (time > seconds[static_cast<std::size_t>(rank)]) rank = r;
    }
    double waited = 0;
    for (double replica : replicas) waited += seconds[static_cast<std::size_t>(rank)] - replica;
    return {rank, std::clamp(waited / (mesh.dp - 1) / step_seconds, 0.0, 1.0)};
}

std::string SlowestStreak::warning(const Waiting& waiting, const std::vector<std::string>& hosts) {
    if (waiting.rank != rank_ || waiting.share < least_share) length_ = 0, shares_ = 0;
    rank_ = waiting.rank;
    if (waiting.share < least_share) return "";
    length_++, shares_ += waiting.share;
    if (length_ < steps || !named_.insert(rank_).second) return "";
    const std::string host = hosts.empty() ? "" : " on " + hosts.at(static_cast<std::size_t>(rank_));
    return formatted(
        "rank %d%s was the slowest of all in %d steps in a row, and the others waited for it for %.1f%% of "
        "the time: look at its device, its disk and what else runs there",
        rank_, host.c_str(), length_, 100 * shares_ / length_);
}

SlowestRank::SlowestRank(Stage& stage, Communicator* all, const MeshShape& mesh, Arena& arena)
    : stage_(stage),
      mesh_(mesh),
      all_(mesh.dp > 1 ? all : nullptr),
      own_(all_ != nullptr ? static_cast<std::size_t>(all_->size()) : 0),
      of_all_(own_.values().size()) {
    if (all_ == nullptr) return;
    sums_ = arena.allocate<double>("step/times of ranks", own_.values().size());
    if (stage.storage().place().zero_stage == 0) return;   // without ZeRO no pass waits for other replicas
    inner_ = stage.hooks();
    stage.set_hooks(this);
}

SlowestRank::~SlowestRank() {
    if (inner_ != nullptr) stage_.set_hooks(inner_);
}

void SlowestRank::step_begins() {
    if (all_ == nullptr) return;
    measures_ = true;
    waits_used_ = 0;
    begin_.record(stage_.stream());
    // The stream is idle, because the host has waited for the step before. The stand-in records the time only when the
    // event is waited for.
    wait_for(begin_.get());
}

void SlowestRank::passes_end() {
    if (all_ == nullptr) return;
    measures_ = false;
    const cudaStream_t stream = stage_.stream();
    end_.record(stream);
    std::ranges::fill(own_.values(), 0.0);   // the copy from here belongs to the step before, which is over
    own_.values()[static_cast<std::size_t>(all_->rank())] = own_seconds_;
    const std::size_t ranks = sums_.size();
    CUDA_CHECK(
        cudaMemcpyAsync(sums_.data(), own_.values().data(), ranks * sizeof(double), cudaMemcpyHostToDevice, stream));
    all_->all_reduce(sums_.data(), ranks, ReduceOp::sum, stream);
    CUDA_CHECK(
        cudaMemcpyAsync(of_all_.values().data(), sums_.data(), ranks * sizeof(double), cudaMemcpyDeviceToHost, stream));
}

std::optional<Waiting> SlowestRank::step_ended(double seconds) {
    if (all_ == nullptr) return std::nullopt;
    std::optional<Waiting> found;
    if (step_seconds_ > 0) found = slowest_rank(mesh_, of_all_.values(), step_seconds_);
    step_seconds_ = seconds;
    own_seconds_ = end_.seconds_since(begin_);
    for (std::size_t i = 0; i < waits_used_; i++) own_seconds_ -= waits_[i].end.seconds_since(waits_[i].begin);
    return found;
}

template <class Call>
void SlowestRank::without(Call&& call) {
    if (!measures_) return call();
    if (waits_used_ == waits_.size()) waits_.emplace_back();
    const Wait& wait = waits_[waits_used_++];
    wait.begin.record(stage_.stream());
    call();
    wait.end.record(stage_.stream());
}

void SlowestRank::use_begins() {
    without([this] { inner_->use_begins(); });
}

void SlowestRank::gradients_begin(int slot) {
    without([this, slot] { inner_->gradients_begin(slot); });
}
