// Runs threads that take work in order and deliver results in order.
//
// Each thread repeats: take the next item (one thread at a time), process it (all at once), deliver. Results are
// delivered strictly in the order the items were taken, by whichever thread completes the sequence; a thread that is
// ahead leaves its result and goes on, until too many wait. So there are exactly `threads` threads, memory is bounded,
// and the outcome does not depend on timing - errors included: the first in order is the one that is thrown.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

template <class Result>
class InOrder {
public:
    explicit InOrder(int threads) : threads_(threads) {}

    // Calls take(result) -> bool, which fills what is to be done, false when there is nothing left; process(result,
    // thread), on all threads at once, thread in [0, threads); and deliver(result), in order.
    template <class Take, class Process, class Deliver>
    void run(Take take, Process process, Deliver deliver) {
        auto work = [&](int thread) {
            while (true) {
                Result result;
                std::uint64_t number = 0;
                {
                    std::lock_guard lock(taking_);
                    if (!reuse(result)) return;
                    number = next_to_take_;
                    bool more = false;
                    guard(number, [&] { more = take(result); });
                    if (!more) return;
                    next_to_take_++;
                }
                guard(number, [&] { process(result, thread); });
                hand_over(number, std::move(result), deliver);
            }
        };
        std::vector<std::thread> others;
        for (int i = 1; i < threads_; i++) others.emplace_back(work, i);
        work(0);
        for (std::thread& other : others) other.join();
        if (error_) std::rethrow_exception(error_);
    }

private:
    // Gives a new item the memory of a delivered one; false when there was an error and no more should be taken.
    bool reuse(Result& result) {
        std::lock_guard lock(delivering_);
        if (!spare_.empty()) {
            result = std::move(spare_.back());
            spare_.pop_back();
        }
        return error_ == nullptr;
    }

    // Runs a step of item `number`; an exception stops the taking of new items, and the earliest one is kept.
    template <class Step>
    void guard(std::uint64_t number, Step step) {
        try {
            step();
        } catch (...) {
            std::lock_guard lock(delivering_);
            if (error_ && error_number_ <= number) return;
            error_ = std::current_exception();
            error_number_ = number;
            changed_.notify_all();
        }
    }

    template <class Deliver>
    void hand_over(std::uint64_t number, Result result, Deliver& deliver) {
        std::unique_lock lock(delivering_);
        waiting_.emplace(number, std::move(result));
        // the thread whose item is next never waits, so the others' wait ends
        changed_.wait(lock, [&] {
            return error_ || number == next_to_deliver_ || waiting_.size() <= 2 * static_cast<std::size_t>(threads_);
        });
        while (!delivering_now_ && !waiting_.empty() && waiting_.begin()->first == next_to_deliver_) {
            if (error_ && error_number_ <= next_to_deliver_) return;
            Result ready = std::move(waiting_.begin()->second);
            waiting_.erase(waiting_.begin());
            delivering_now_ = true;
            lock.unlock();
            guard(next_to_deliver_, [&] { deliver(ready); });
            lock.lock();
            delivering_now_ = false;
            next_to_deliver_++;
            spare_.push_back(std::move(ready));
            changed_.notify_all();
        }
    }

    int threads_;
    std::mutex taking_, delivering_;
    std::condition_variable changed_;
    std::uint64_t next_to_take_ = 0, next_to_deliver_ = 0;
    bool delivering_now_ = false;
    std::map<std::uint64_t, Result> waiting_;
    std::vector<Result> spare_;
    std::exception_ptr error_;
    std::uint64_t error_number_ = 0;
};
