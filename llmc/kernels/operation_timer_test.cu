#include "llmc/kernels/operation_timer.h"

#include <chrono>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/matmul/matmul.h"

namespace {

const OperationTimer::Total* find(const std::vector<OperationTimer::Total>& totals, const std::string& name) {
    for (const auto& total : totals) {
        if (total.name == name) return &total;
    }
    return nullptr;
}

}   // namespace

TEST_CASE("operation timer: every operation by name, and their times add up to the stream's") {
    KernelTest test;
    const std::int64_t n = 1 << 16;
    auto a = test.random<float>(n, 1.0, 1), b = test.output<float>(n);
    Matmul matmul(test.arena);
    const auto begin = std::chrono::steady_clock::now();
    OperationTimer timer(test.stream);
    for (int i = 0; i < 3; i++) fill(b.data(), n, 1.0f, test.stream);
    matmul.forward<float>(b.data(), a.data(), a.data(), nullptr, MatmulShape{64, 64, 64}, test.stream);
    const std::vector<OperationTimer::Total> totals = timer.totals();
    const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;

    REQUIRE(totals.size() == 2);
    const auto *fills = find(totals, "fill_kernel"), *products = find(totals, "matmul, forward");
    REQUIRE(fills != nullptr);
    REQUIRE(products != nullptr);
    CHECK(fills->calls == 3);
    CHECK(products->calls == 1);
    CHECK(fills->bytes == 3.0 * 4 * n);
    CHECK(products->bytes == 3.0 * 4 * 64 * 64);   // two are read, one is written
    CHECK(fills->seconds > 0);
    CHECK(products->seconds > 0);
    CHECK(fills->seconds + products->seconds <= whole.count());
    CHECK(totals[0].seconds >= totals[1].seconds);
}

TEST_CASE("operation timer: sees its own stream only, and only while it lives") {
    KernelTest test, other;
    auto mine = test.output<float>(8), foreign = other.output<float>(8);
    CHECK(!OperationTimer::watches(test.stream));
    {
        OperationTimer outer(test.stream);
        CHECK(OperationTimer::watches(test.stream));
        {
            OperationTimer inner(other.stream);
            CHECK(!OperationTimer::watches(test.stream));
            fill(foreign.data(), 8, 1.0f, other.stream);
            CHECK(inner.totals().size() == 1);
        }
        fill(foreign.data(), 8, 1.0f, other.stream);
        CHECK(outer.totals().empty());
        fill(mine.data(), 8, 1.0f, test.stream);
        CHECK(outer.totals().size() == 1);
    }
    CHECK(!OperationTimer::watches(test.stream));
}
