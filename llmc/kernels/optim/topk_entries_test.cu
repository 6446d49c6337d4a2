// The largest elements of gradients: which are picked, what is left, and the sum of all ranks' entries.
#include "llmc/kernels/optim/topk_entries.cuh"

#include <doctest/doctest.h>

#include <numeric>

#include "llmc/kernels/kernel_testing.h"

namespace {

// Entries of one rank, and what it has left.
struct Picked {
    std::vector<TopkEntry> entries;
    Doubles left;
};

Picked pick(KernelTest& test, const TopkChunks& how, const Doubles& gradient, const Doubles& error) {
    auto given = test.tensor<float>(gradient), left = test.tensor<float>(error);
    auto entries = test.arena.allocate<TopkEntry>("test/entries", static_cast<std::size_t>(how.shards * how.stride));
    pick_largest(entries.data(), how, left.data(), given.data(), test.stream);
    return {entries.download(test.stream), left.values()};
}

// Returns the indices of a chunk's largest magnitudes, ascending, by sorting all of them.
std::vector<int> largest_by_sorting(const Doubles& values, std::size_t first, int elements, int entries) {
    std::vector<int> order(static_cast<std::size_t>(elements));
    std::iota(order.begin(), order.end(), 0);
    auto magnitude = [&](int i) { return std::abs(values[first + static_cast<std::size_t>(i)]); };
    std::ranges::stable_sort(order, [&](int a, int b) { return magnitude(a) > magnitude(b); });
    order.resize(static_cast<std::size_t>(entries));
    std::ranges::sort(order);
    return order;
}

void check_picks(std::int64_t shards, std::int64_t shard, float fraction, std::int64_t more_entries) {
    INFO(shards << " shards of " << shard << ", " << fraction << " of them");
    KernelTest test;
    TopkChunks how = topk_chunks(shards, shard, fraction);
    how.stride += more_entries;
    const auto n = static_cast<std::size_t>(shards * shard);
    // few different magnitudes, so that some equal the smallest that is picked
    Doubles gradient = test.random<float>(n, 1.0, 3).values(), error = test.random<float>(n, 1.0, 4).values();
    for (double& x : gradient) x = std::round(8 * x) / 8;
    for (double& x : error) x = std::round(8 * x) / 8;
    const Picked picked = pick(test, how, gradient, error);
    Doubles sums(n);
    for (std::size_t i = 0; i < n; i++) sums[i] = gradient[i] + error[i];
    for (std::int64_t s = 0; s < shards; s++) {
        std::int64_t next = s * how.stride;
        for (std::int64_t begin = 0; begin < shard; begin += 1024) {
            const int elements = static_cast<int>(std::min<std::int64_t>(1024, shard - begin));
            const auto first = static_cast<std::size_t>(s * shard + begin);
            const int entries = topk_entries(elements, fraction);
            Doubles left(sums.begin() + static_cast<std::ptrdiff_t>(first),
                         sums.begin() + static_cast<std::ptrdiff_t>(first) + elements);
            for (int index : largest_by_sorting(sums, first, elements, entries)) {
                const TopkEntry entry = picked.entries[static_cast<std::size_t>(next++)];
                REQUIRE(entry.index == index);
                CHECK(static_cast<double>(entry.value) == sums[first + static_cast<std::size_t>(index)]);
                left[static_cast<std::size_t>(index)] = 0;
            }
            for (int i = 0; i < elements; i++) {
                REQUIRE(picked.left[first + static_cast<std::size_t>(i)] == left[static_cast<std::size_t>(i)]);
            }
        }
        CHECK(next == s * how.stride + how.of_shard());
    }
}

}   // namespace

TEST_CASE("largest gradients: the fraction of a chunk is rounded up, at least one element") {
    CHECK(topk_entries(1024, 0.01f) == 11);
    CHECK(topk_entries(1024, 0.001f) == 2);
    CHECK(topk_entries(1024, 1.0f) == 1024);
    CHECK(topk_entries(960, 0.3f) == 288);
    CHECK(topk_entries(64, 0.001f) == 1);
}

TEST_CASE("largest gradients: those that sorting finds, equal ones from the first on, the others are left") {
    for (const std::int64_t shards : {1, 3}) {
        for (const std::int64_t shard : {1, 64, 960, 1024, 2112}) {
            for (const float fraction : {1e-6f, 0.01f, 0.3f, 1.0f}) check_picks(shards, shard, fraction, 5);
        }
    }
}

TEST_CASE("largest gradients: all zero, or all equal, the first ones are picked") {
    for (const double value : {0.0, -2.0}) {
        KernelTest test;
        const TopkChunks how = topk_chunks(1, 1088, 0.01f);
        const Picked picked = pick(test, how, Doubles(1088, value), Doubles(1088, 0.0));
        REQUIRE(picked.entries.size() == 11 + 1);
        for (int e = 0; e < 11; e++) CHECK(picked.entries[static_cast<std::size_t>(e)].index == e);
        CHECK(picked.entries[11].index == 0);
        CHECK(picked.left[10] == 0);
        CHECK(picked.left[11] == value);
    }
}

TEST_CASE("largest gradients: numbers that are not finite are picked before all others, and arrive as such") {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
        KernelTest test;
        Doubles values(300, 1e30);
        values[200] = bad;
        const TopkChunks how = topk_chunks(1, 300, 1e-6f);
        const Picked picked = pick(test, how, values, Doubles(300, 0.5));
        REQUIRE(picked.entries.size() == 1);
        CHECK(picked.entries[0].index == 200);
        auto received = test.arena.allocate<TopkEntry>("test/received", 1);
        received.upload(picked.entries, test.stream);
        auto sum = test.output<float>(300);
        add_entries(sum.data(), received.data(), 1, how, test.stream);
        CHECK(!std::isfinite(sum.values()[200]));
        CHECK(sum.values()[199] == 0);
    }
}

TEST_CASE("largest gradients: entries of all ranks are added up in their order") {
    KernelTest test;
    TopkChunks how = topk_chunks(1, 1088, 0.002f);   // 3 entries of the first chunk, 1 of the second
    how.stride = 6;
    std::vector<TopkEntry> entries(18, TopkEntry{0, 77});   // those between two ranks' belong to another tensor
    auto put = [&](int rank, int entry, int index, float value) {
        entries[static_cast<std::size_t>(6 * rank + entry)] = {index, value};
    };
    put(0, 0, 5, 1e8f), put(0, 1, 6, 1), put(0, 2, 1023, 2), put(0, 3, 63, 3);
    put(1, 0, 5, -1e8f), put(1, 1, 7, 10), put(1, 2, 1023, 20), put(1, 3, 0, 30);
    put(2, 0, 5, 1), put(2, 1, 6, 100), put(2, 2, 8, 200), put(2, 3, 63, 300);
    auto received = test.arena.allocate<TopkEntry>("test/received", entries.size());
    received.upload(entries, test.stream);
    auto sum = test.output<float>(1088);
    add_entries(sum.data(), received.data(), 3, how, test.stream);
    Doubles expected(1088, 0.0);
    expected[5] = 1;   // another order would lose it beside 1e8
    expected[6] = 101, expected[7] = 10, expected[8] = 200, expected[1023] = 22;
    expected[1024] = 30, expected[1024 + 63] = 303;
    CHECK(sum.values() == expected);
}
