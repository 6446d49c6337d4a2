// The thread pool: every item once, whatever the numbers; errors come back; nested calls; threads counted.
#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "llmc/cuda_on_cpu/exec/thread_pool.h"

namespace {

// The given number of threads for one test.
class WithThreads {
public:
    explicit WithThreads(int count) : before_(host::thread_count()) { host::set_thread_count(count); }
    ~WithThreads() { host::set_thread_count(before_); }

private:
    int before_;
};

}   // namespace

TEST_CASE("thread pool: every index is handed out once, with any number of threads and any grain") {
    for (int threads : {1, 2, 3, 8}) {
        WithThreads with(threads);
        CHECK(host::thread_count() == threads);
        for (std::int64_t count : {0, 1, 2, 7, 100, 1001}) {
            for (std::int64_t grain : {0, 1, 3, 2000}) {
                std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
                host::parallel_for(
                    count, [&](std::int64_t i) { seen[static_cast<std::size_t>(i)]++; }, grain);
                for (const std::atomic<int>& times : seen) REQUIRE(times == 1);
            }
        }
    }
}

TEST_CASE("thread pool: pieces are consecutive, not longer than asked for, and cover the range") {
    WithThreads with(4);
    struct Pieces {
        std::atomic<std::int64_t> sum{0}, pieces{0}, longest{0};
    } pieces;
    auto body = [](void* context, std::int64_t first, std::int64_t last) {
        auto& p = *static_cast<Pieces*>(context);
        p.sum += last - first;
        p.pieces++;
        std::int64_t longest = p.longest;
        while (last - first > longest && !p.longest.compare_exchange_weak(longest, last - first)) {
        }
    };
    host::parallel_ranges(1003, 10, body, &pieces);
    CHECK(pieces.sum == 1003);
    CHECK(pieces.pieces == 101);
    CHECK(pieces.longest == 10);
}

TEST_CASE("thread pool: several threads do work at the same time, each with its number") {
    WithThreads with(3);
    std::atomic<int> inside{0};
    std::vector<int> numbers(3);
    // each waits until all three are inside: only possible at the same time
    host::parallel_for(
        3,
        [&](std::int64_t i) {
            numbers[static_cast<std::size_t>(i)] = host::thread_number();
            inside++;
            auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
            while (inside < 3 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        },
        1);
    CHECK(inside == 3);
    CHECK(std::set<int>(numbers.begin(), numbers.end()) == std::set<int>{0, 1, 2});
    CHECK(host::thread_number() == 0);
}

TEST_CASE("thread pool: an exception ends the job and comes back; the pool goes on") {
    for (int threads : {1, 4}) {
        WithThreads with(threads);
        for (int round = 0; round < 20; round++) {
            std::atomic<int> done{0};
            auto job = [&] {
                host::parallel_for(
                    100,
                    [&](std::int64_t i) {
                        if (i == 13) throw std::runtime_error("thirteen");
                        done++;
                    },
                    1);
            };
            CHECK_THROWS_WITH(job(), "thirteen");
            CHECK(done < 100);
        }
        std::atomic<int> after{0};
        host::parallel_for(50, [&](std::int64_t) { after++; });
        CHECK(after == 50);
    }
}

TEST_CASE("thread pool: nested calls run on the calling thread") {
    WithThreads with(4);
    std::atomic<int> count{0}, elsewhere{0};
    host::parallel_for(
        16,
        [&](std::int64_t) {
            const std::thread::id me = std::this_thread::get_id();
            host::parallel_for(
                10, [&](std::int64_t) { count++, elsewhere += std::this_thread::get_id() != me; }, 1);
        },
        1);
    CHECK(count == 160);
    CHECK(elsewhere == 0);
}

TEST_CASE("thread pool: callers on several threads take turns") {
    WithThreads with(3);
    std::vector<std::thread> callers;
    std::atomic<std::int64_t> sum{0};
    for (int c = 0; c < 4; c++) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; round++) {
                host::parallel_for(
                    20, [&](std::int64_t i) { sum += i; }, 1);
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(sum == 4 * 50 * 190);
}

TEST_CASE("thread pool: helpers have a stack for handlers of faults") {
    WithThreads with(4);
    std::atomic<int> helpers{0}, without{0};
    for (int round = 0; round < 50 && helpers < 3; round++) {
        host::parallel_for(
            16,
            [&](std::int64_t) {
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                if (host::thread_number() == 0) return;
                stack_t stack{};
                sigaltstack(nullptr, &stack);
                helpers++, without += (stack.ss_flags & SS_DISABLE) != 0;
            },
            1);
    }
    CHECK(helpers > 0);
    CHECK(without == 0);
}
