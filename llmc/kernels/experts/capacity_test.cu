// Assignments over an expert's capacity against a plain loop.
#include <algorithm>
#include <numeric>

#include "llmc/kernels/experts/capacity.cuh"
#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/kernel_testing.h"

namespace {

using Index = std::size_t;

struct Expected {
    std::vector<int> offsets, source, row_of;
};

// Takes assignments in the order of tokens, each expert until it is full.
Expected expected_order(const std::vector<int>& index, int E, int capacity) {
    std::vector<std::vector<int>> kept(static_cast<Index>(E)), dropped(static_cast<Index>(E));
    for (Index i = 0; i < index.size(); i++) {
        const auto e = static_cast<Index>(index[i]);
        (kept[e].size() < static_cast<Index>(capacity) ? kept : dropped)[e].push_back(static_cast<int>(i));
    }
    Expected result{{0}, {}, std::vector<int>(index.size())};
    for (const auto& of_expert : kept) {
        result.source.insert(result.source.end(), of_expert.begin(), of_expert.end());
        result.offsets.push_back(static_cast<int>(result.source.size()));
    }
    for (const auto& of_expert : dropped) {
        result.source.insert(result.source.end(), of_expert.begin(), of_expert.end());
    }
    for (Index row = 0; row < index.size(); row++) {
        result.row_of[static_cast<Index>(result.source[row])] = static_cast<int>(row);
    }
    return result;
}

// Chooses K different experts for each token, the lower ones more often.
std::vector<int> uneven_choices(int tokens, int E, int K) {
    std::vector<int> index;
    for (int token = 0; token < tokens; token++) {
        std::vector<double> score;
        for (int e = 0; e < E; e++) score.push_back(normal(3, static_cast<std::uint64_t>(token * E + e)) - 0.5 * e);
        std::vector<int> order(static_cast<Index>(E));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order,
                          [&](int a, int b) { return score[static_cast<Index>(a)] > score[static_cast<Index>(b)]; });
        order.resize(static_cast<Index>(K));
        std::ranges::sort(order);
        index.insert(index.end(), order.begin(), order.end());
    }
    return index;
}

}   // namespace

TEST_CASE("capacity: an expert's share of the rows, rounded up, and no more than there are tokens") {
    CHECK(expert_capacity(1, 16, 4, 2) == 8);
    CHECK(expert_capacity(1.25f, 16, 4, 2) == 10);
    CHECK(expert_capacity(1, 10, 4, 1) == 3);   // 2.5
    CHECK(expert_capacity(1.1f, 100, 4, 4) == 100);
    CHECK(expert_capacity(1.1f, 400, 4, 1) == 110);   // though the product is a little more in fp32
    CHECK(expert_capacity(1e-6f, 16, 4, 2) == 1);
    CHECK(expert_capacity(1e9f, 1 << 20, 4, 2) == 1 << 20);
    CHECK(expert_capacity(1, 0, 4, 2) == 0);
}

TEST_CASE("capacity: each expert keeps the first tokens sent to it; the others come last, with no weight") {
    for (const auto& [tokens, E, K] : {std::tuple(150, 8, 2), std::tuple(7, 5, 3), std::tuple(300, 64, 1),
                                       std::tuple(3, 8, 1), std::tuple(40, 1, 1)}) {
        const std::vector<int> index = uneven_choices(tokens, E, K);
        const auto n = index.size();
        for (const int capacity : {1, 2, tokens * K / E + 1, tokens - 1, tokens}) {
            const auto e_ = static_cast<Index>(E);
            CAPTURE(e_);
            CAPTURE(capacity);
            KernelTest test;
            const DeviceBuffer<int> index_d = test.ints(index), all = test.ints(std::vector<int>(e_ + 1, -1)),
                                    offsets = test.ints(std::vector<int>(e_ + 1, -1)),
                                    source = test.ints(std::vector<int>(n, -1)),
                                    row_of = test.ints(source.download(test.stream));
            order_by_expert(all.data(), source.data(), row_of.data(), index_d.data(), tokens, E, K, test.stream);
            const std::vector<int> before = source.download(test.stream);
            drop_over_capacity(offsets.data(), source.data(), row_of.data(), all.data(), index_d.data(), capacity,
                               tokens, E, K, test.stream);
            const Expected expected = expected_order(index, E, capacity);
            CHECK(offsets.download(test.stream) == expected.offsets);
            CHECK(source.download(test.stream) == expected.source);
            CHECK(row_of.download(test.stream) == expected.row_of);
            if (capacity == tokens) CHECK(expected.source == before);

            const int kept = expected.offsets.back();
            auto dweight = test.tensor<float>(Doubles(n, 1.0));
            const DeviceBuffer<int> dropped = test.ints({5, 5});
            forget_dropped(dweight.data(), dropped.data() + 1, offsets.data(), source.data(), tokens, E, K,
                           test.stream);
            CHECK(dropped.download(test.stream) == std::vector<int>{5, 5 + static_cast<int>(n) - kept});
            Doubles ones(n);
            for (Index i = 0; i < n; i++) ones[i] = expected.row_of[i] < kept;
            CHECK(dweight.values() == ones);
            forget_dropped(dweight.data(), nullptr, offsets.data(), source.data(), tokens, E, K, test.stream);
            CHECK(dweight.values() == ones);
        }
    }
}

TEST_CASE_TEMPLATE("capacity: a token is the sum of the rows that are kept, whatever the others hold", Real, float,
                   bf16) {
    KernelTest test;
    const Index C = 16;
    Doubles parts = random_values<Real>(6 * C, 1, 2), more = random_values<Real>(3 * C, 1, 3), sum = more;
    const std::vector<int> row_of = {0, 4, 5, 1, 4, 5};   // the last token has lost both of its experts
    for (Index i = 4 * C; i < 6 * C; i++) parts[i] = NAN;
    for (Index i = 0; i < 2 * C; i++) {
        sum[i] = rounded<Real>(sum[i] + parts[static_cast<Index>(row_of[i / C == 0 ? 0 : 3]) * C + i % C]);
    }
    auto parts_d = test.tensor<Real>(parts), more_d = test.tensor<Real>(more);
    const DeviceBuffer<int> row_d = test.ints(row_of), kept = test.ints({4});
    combine_rows<Real>(more_d.data(), parts_d.data(), more_d.data(), row_d.data(), kept.data(), 3, 2, 16, test.stream);
    CHECK(more_d.values() == sum);
}
