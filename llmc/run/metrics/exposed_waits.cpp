#include "llmc/run/metrics/exposed_waits.h"

#include <algorithm>

#include "llmc/base/ensure.h"
#include "llmc/process/comm.h"

void ExposedWaits::step_begins() {
    ENSURE(stream_observer == nullptr || stream_observer == this, "two observers of one thread's streams");
    stream_observer = this;
    used_ = 0, depth_ = 0, is_open_ = false;
}

void ExposedWaits::step_ends() {
    if (stream_observer == this) stream_observer = nullptr;
}

std::map<std::string, double> ExposedWaits::seconds(std::size_t count) const {
    std::map<std::string, double> sums;
    for (std::size_t i = 0; i < count; i++) {
        const Wait& wait = waits_[i];
        sums[groups_[static_cast<std::size_t>(wait.group)]] += wait.end.seconds_since(wait.begin);
    }
    return sums;
}

void ExposedWaits::recorded(cudaEvent_t event, cudaStream_t stream) {
    const auto found = latest_.find(stream);
    if (found != latest_.end()) {
        recorded_[event] = found->second.group;
        found->second.is_behind_event = true;
    } else {
        recorded_.erase(event);   // the event follows no communication
    }
}

void ExposedWaits::waits(cudaStream_t stream, cudaEvent_t event) {
    if (stream != compute_) return;
    if (const auto found = recorded_.find(event); found != recorded_.end()) open(found->second);
}

void ExposedWaits::communicates(cudaStream_t stream, const std::string& group) {
    const std::string name = short_group_name(group);
    if (stream == compute_) return open(index_of(name));
    const auto [latest, is_new] = latest_.try_emplace(stream);
    if (is_new || latest->second.is_behind_event) {
        latest->second = {index_of(name), false};
        return;
    }
    const std::string so_far = groups_[static_cast<std::size_t>(latest->second.group)];
    if (("+" + so_far + "+").find("+" + name + "+") == std::string::npos) {
        latest->second.group = index_of(so_far + "+" + name);
    }
}

int ExposedWaits::index_of(const std::string& name) {
    const auto found = std::ranges::find(groups_, name);
    const auto index = static_cast<int>(found - groups_.begin());
    if (found == groups_.end()) groups_.push_back(name);
    return index;
}

// Opens a wait. If several operations are launched together, the first one names it.
void ExposedWaits::open(int group) {
    if (is_open_) return;
    if (used_ == waits_.size()) waits_.emplace_back();
    waits_[used_].group = group;
    waits_[used_++].begin.record(compute_);
    is_open_ = true;
}

void ExposedWaits::end() {
    if (--depth_ > 0 || !is_open_) return;
    waits_[used_ - 1].end.record(compute_);
    is_open_ = false;
}
