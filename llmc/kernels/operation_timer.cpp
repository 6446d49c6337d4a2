#include "llmc/kernels/operation_timer.h"

#include <algorithm>
#include <functional>
#include <map>

#include "llmc/base/check.h"

namespace {

thread_local OperationTimer* timer_of_thread = nullptr;

// Returns a kernel's plain name: "void layernorm_forward_kernel<float, PacketExtent>(...)" ->
// "layernorm_forward_kernel"
std::string plain_name(std::string name) {
    const std::string unnamed = "(anonymous namespace)::";
    if (name.starts_with("void ")) name = name.substr(5);
    if (auto at = name.find(unnamed); at != std::string::npos) name = name.substr(at + unnamed.size());
    return name.substr(0, name.find_first_of("<("));
}

}   // namespace

OperationTimer::OperationTimer(cudaStream_t stream) : stream_(stream), outer_(timer_of_thread) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    mark("");
    timer_of_thread = this;
}

OperationTimer::~OperationTimer() { timer_of_thread = outer_; }

void OperationTimer::mark(std::string name, std::size_t bytes) {
    marks_.push_back({std::move(name), TimedEvent(), bytes});
    marks_.back().event.record(stream_);
}

bool OperationTimer::watches(cudaStream_t stream) {
    return timer_of_thread != nullptr && timer_of_thread->stream_ == stream;
}

void OperationTimer::note(cudaStream_t stream, const std::string& name, std::size_t bytes) {
    if (watches(stream)) timer_of_thread->mark(plain_name(name), bytes);
}

std::vector<OperationTimer::Total> OperationTimer::totals() {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    std::map<std::string, Total> by_name;
    for (std::size_t i = 1; i < marks_.size(); i++) {
        Total& total = by_name.try_emplace(marks_[i].name, Total{marks_[i].name, 0, 0, 0}).first->second;
        total.seconds += marks_[i].event.seconds_since(marks_[i - 1].event);
        total.calls++;
        total.bytes += static_cast<double>(marks_[i].bytes);
    }
    std::vector<Total> totals;
    for (auto& [name, total] : by_name) totals.push_back(std::move(total));
    std::ranges::stable_sort(totals, std::greater<>(), &Total::seconds);
    return totals;
}
