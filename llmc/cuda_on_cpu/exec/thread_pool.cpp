#include "llmc/cuda_on_cpu/exec/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/limits/usable_cores.h"
#include "llmc/cuda_on_cpu/memory/fault.h"

namespace host {
namespace {

constexpr int most_threads = 1024;

int clamp_threads(int count) { return std::clamp(count, 1, most_threads); }

thread_local int current_thread_number = 0;
thread_local bool inside_parallel = false;

// One call of parallel_ranges. `next` is the first index nobody has taken yet.
struct Job {
    Job(std::int64_t count_, std::int64_t grain_, ParallelBody body_, void* context_)
        : count(count_), grain(grain_), body(body_), context(context_) {}
    std::int64_t count;
    std::int64_t grain;
    ParallelBody body;
    void* context;
    std::atomic<std::int64_t> next{0};
    std::exception_ptr error;   // guarded by the pool's mutex
};

class ThreadPool {
public:
    ThreadPool() : count_(clamp_threads(threads_of_environment().value_or(usable_cores().count()))) {}
    ~ThreadPool() { stop_helpers(); }

    int count() const { return count_.load(std::memory_order_relaxed); }

    void resize(int count) {
        std::lock_guard<std::mutex> one_caller(callers_);
        stop_helpers();
        count_ = clamp_threads(count);
    }

    void run(Job& job) {
        std::lock_guard<std::mutex> one_caller(callers_);
        start_helpers();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            generation_++;
        }
        std::int64_t pieces = (job.count + job.grain - 1) / job.grain;
        if (pieces - 1 < static_cast<std::int64_t>(helpers_.size())) {
            for (std::int64_t i = 1; i < pieces; i++) wake_.notify_one();
        } else {
            wake_.notify_all();
        }
        work(job);
        std::unique_lock<std::mutex> lock(mutex_);
        job_ = nullptr;   // a helper that wakes late finds nothing and sleeps again
        done_.wait(lock, [this] { return joined_ == 0; });
    }

private:
    void start_helpers() {
        while (static_cast<int>(helpers_.size()) < count() - 1) {
            int number = static_cast<int>(helpers_.size()) + 1;
            helpers_.emplace_back([this, number] { help(number); });
        }
    }

    void stop_helpers() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& helper : helpers_) helper.join();
        helpers_.clear();
        stopping_ = false;
    }

    void help(int number) {
        prepare_thread_for_faults();   // oneDNN may run on it when a fault comes, with its stack pointer in the heap
        current_thread_number = number;
        std::uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || (job_ && generation_ != seen); });
            if (stopping_) return;
            seen = generation_;
            Job& job = *job_;
            joined_++;
            lock.unlock();
            work(job);
            lock.lock();
            if (--joined_ == 0) done_.notify_one();
        }
    }

    void work(Job& job) {
        inside_parallel = true;
        try {
            for (;;) {
                std::int64_t first = job.next.fetch_add(job.grain, std::memory_order_relaxed);
                if (first >= job.count) break;
                job.body(job.context, first, std::min(first + job.grain, job.count));
            }
        } catch (...) {
            job.next.store(job.count, std::memory_order_relaxed);
            std::lock_guard<std::mutex> lock(mutex_);
            if (!job.error) job.error = std::current_exception();
        }
        inside_parallel = false;
    }

    std::mutex callers_;   // one job at a time
    std::atomic<int> count_;
    std::vector<std::thread> helpers_;   // touched only under callers_

    std::mutex mutex_;   // guards the members below
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    std::uint64_t generation_ = 0;
    int joined_ = 0;
    bool stopping_ = false;
};

ThreadPool& pool() {
    static ThreadPool the_pool;
    return the_pool;
}

}   // namespace

std::optional<int> threads_of_environment() {
    const char* const given = std::getenv("TRAIN_GPT_THREADS");
    if (given == nullptr || *given == '\0') return std::nullopt;
    const std::string_view digits = given;
    int count = 0;
    const auto [rest, status] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (status != std::errc() || rest != digits.data() + digits.size() || count < 1 || count > most_threads) {
        throw Error(
            ErrorKind::usage, text("the environment has TRAIN_GPT_THREADS=", digits),
            text("Expected a number of threads, 1 to ", most_threads, "; unset it to use the cores there are."));
    }
    return count;
}

int thread_count() { return pool().count(); }
void set_thread_count(int count) { pool().resize(count); }
int thread_number() { return current_thread_number; }

void parallel_ranges(std::int64_t count, std::int64_t grain, ParallelBody body, void* context) {
    if (count <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    if (inside_parallel || count <= grain || thread_count() == 1) {
        for (std::int64_t first = 0; first < count; first += grain)
            body(context, first, std::min(first + grain, count));
        return;
    }
    Job job(count, grain, body, context);
    pool().run(job);
    if (job.error) std::rethrow_exception(job.error);
}

}   // namespace host
