// A queue in which gradients of weights wait.
//
// A layer's backward has two parts. The gradient of its input is what the layer below waits for. Nobody waits for the
// gradients of its weights but the optimizer, so they go through a queue: they may run behind a collective, or at
// another time of the pipeline's schedule (Qi et al., "Zero bubble pipeline parallelism", 2023).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

// Times at which queued work runs: in the order of add(), at the latest at drain().
enum class WeightGradients : std::uint8_t {
    at_once,
    behind_collective,   // after a collective of backward has been started, to hide it
    at_schedule,         // in the schedule's backward_weight: what it reads must be kept until then
};

// A gradient of weights that waits. `prefetch`, or none, starts to bring what `run` reads from other ranks.
struct WeightGradient {
    std::function<void()> prefetch = {}, run;
};

class WeightGradientQueue {
public:
    static constexpr std::size_t all = SIZE_MAX;

    explicit WeightGradientQueue(WeightGradients when = WeightGradients::at_once) : when_(when) {}

    // Adds an item. What it reads is fetched at once, to travel beside the work that comes next; or if it runs at the
    // schedule's time, beside the item before it.
    void add(WeightGradient item) {
        if (when_ != WeightGradients::at_schedule) begin_fetch(item);
        if (when_ == WeightGradients::at_once) return item.run();
        waiting_.push_back({std::move(item), {}});
    }
    // Runs `work` right after the item that was added last.
    void then(std::function<void()> work) {
        if (waiting_.empty()) return work();
        waiting_.back().after.push_back(std::move(work));
    }
    // Runs at most `most` of the waiting items, the oldest, behind a collective. What the others read must be kept.
    void collective_started(std::size_t most = all) {
        if (when_ == WeightGradients::behind_collective) run(most);
    }
    void drain() { run(all); }

private:
    struct Waiting {
        WeightGradient item;
        std::vector<std::function<void()>> after;
    };
    static void begin_fetch(WeightGradient& item) {
        if (item.prefetch) std::exchange(item.prefetch, nullptr)();
    }
    void run(std::size_t most) {
        for (; most > 0 && !waiting_.empty(); most--) {
            Waiting next = std::move(waiting_.front());
            waiting_.pop_front();
            begin_fetch(next.item);
            if (!waiting_.empty()) begin_fetch(waiting_.front().item);
            next.item.run();
            for (const std::function<void()>& work : next.after) work();
        }
    }

    WeightGradients when_;
    std::deque<Waiting> waiting_;
};
