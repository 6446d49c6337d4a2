#include "llmc/kernels/init.cuh"

#include "llmc/kernels/kernel_testing.h"

TEST_CASE_TEMPLATE("init: fill writes every element and no other", Real, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 8u, 2047u, 2049u}) {
        for (std::size_t shift : {0u, 1u}) {
            auto out = test.output<Real>(n, shift);
            fill(out.data(), static_cast<std::int64_t>(n), 1.5f, test.stream);
            CHECK(out.values() == Doubles(n, 1.5));
        }
    }
}

TEST_CASE_TEMPLATE("init: normal numbers are those of the counter, whatever piece is asked for", Real, float, bf16) {
    KernelTest test;
    const std::uint64_t key = random_key(42, 7);
    const int rows = 10, columns = 36;
    auto whole = test.output<Real>(rows * columns);
    fill_normal(whole.data(), rows * columns, 0.02f, key, {}, test.stream);
    std::vector<Real> all = whole.raw();

    // not merely close: initial weights have the same bits on every machine
    std::vector<Real> expected;
    for (int i = 0; i < rows * columns; i++) expected.push_back(static_cast<Real>(0.02f * normal(key, i)));
    CHECK(same_bits(all, expected));

    // a range of elements
    auto range = test.output<Real>(100, 1);
    fill_normal(range.data(), 100, 0.02f, key, GlobalSpan{53}, test.stream);
    CHECK(same_bits(range.raw(), std::vector<Real>(all.begin() + 53, all.begin() + 153)));

    // columns 12 .. 23 of every row: pieces of 12, 36 apart
    auto cut = test.output<Real>(rows * 12);
    fill_normal(cut.data(), rows * 12, 0.02f, key, GlobalSpan{12, columns, 12}, test.stream);
    std::vector<Real> part;
    for (int r = 0; r < rows; r++)
        part.insert(part.end(), all.begin() + r * columns + 12, all.begin() + r * columns + 24);
    CHECK(same_bits(cut.raw(), part));

    // Fills from the fifth element of the cut's second row on, as a shard of such a cut begins.
    auto shard = test.output<Real>(50);
    fill_normal(shard.data(), 50, 0.02f, key, GlobalSpan{columns + 12 + 5, columns, 12, 5}, test.stream);
    CHECK(same_bits(shard.raw(), std::vector<Real>(part.begin() + 12 + 5, part.begin() + 12 + 5 + 50)));
}

TEST_CASE("init: a walk over elements of a span meets those that each has by itself") {
    for (const std::uint32_t length : {0u, 1u, 5u, 12u}) {
        for (std::uint32_t phase = 0; phase < std::max(length, 1u); phase++) {
            const GlobalSpan span{100 + phase, 36, length, phase};
            for (std::int64_t first = 0; first < 30; first++) {
                GlobalWalk walk(span, first);
                for (std::int64_t i = first; i < first + 30; i++, walk.next())
                    REQUIRE(walk.element() == span.element(i));
            }
        }
    }
}

TEST_CASE("init: other seeds and tensors give other numbers") {
    CHECK(random_key(1, 2) != random_key(2, 1));
    CHECK(random_key(1, 2) != random_key(1, 3));
}

TEST_CASE("init: casts round to nearest, and back is exact") {
    KernelTest test;
    Doubles values = random_values<float>(3001, 3.0, 1), expected(3001);
    for (std::size_t i = 0; i < values.size(); i++) expected[i] = rounded<bf16>(values[i]);
    auto in = test.tensor<float>(values), back = test.output<float>(3001);
    auto narrow = test.output<bf16>(3001, 1);
    cast(narrow.data(), in.data(), 3001, test.stream);
    CHECK(narrow.values() == expected);
    cast(back.data(), narrow.data(), 3001, test.stream);
    CHECK(back.values() == expected);
}
