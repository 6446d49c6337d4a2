// Rounded blocks of gradients: what is delivered and what is left out add up to what was given.
#include "llmc/kernels/optim/gradient_blocks.cuh"

#include <doctest/doctest.h>

#include "llmc/kernels/kernel_testing.h"

namespace {

// One sum over ranks, carried out rank by rank: the shards with their owners, then the whole for all.
template <class Block>
struct Sum {
    KernelTest test;
    ShardBlocks how;
    std::vector<std::unique_ptr<TestTensor<float>>> gradients, errors;   // of each rank
    std::vector<DeviceBuffer<Block>> blocks;                             // which each rank sends

    Sum(int ranks, std::int64_t shard, std::int64_t more_blocks) {
        how = equal_shards(ranks, shard);
        how.stride += more_blocks;
        for (int r = 0; r < ranks; r++) {
            const auto n = static_cast<std::size_t>(ranks * shard);
            const std::uint64_t seed = 10 + static_cast<std::uint64_t>(r);
            gradients.push_back(std::make_unique<TestTensor<float>>(test.random<float>(n, 1.0, seed)));
            errors.push_back(std::make_unique<TestTensor<float>>(test.random<float>(n, 1e-2, 10 * seed)));
            blocks.push_back(test.arena.allocate<Block>(text("test/sent ", r), static_cast<std::size_t>(all_blocks())));
        }
    }
    std::int64_t all_blocks() const { return how.ranks * how.stride; }
    float* error(int r) { return errors[static_cast<std::size_t>(r)]->data(); }
    DeviceBuffer<Block>& sent(int r) { return blocks[static_cast<std::size_t>(r)]; }

    void compress() {
        for (int r = 0; r < how.ranks; r++) {
            compress_gradients(sent(r).data(), how, error(r), gradients[static_cast<std::size_t>(r)]->data(),
                               test.stream);
        }
    }
    // Blocks of all ranks for one shard, each rank's at a stride.
    DeviceBuffer<Block> received_by(int owner) {
        std::vector<Block> all;
        for (int from = 0; from < how.ranks; from++) {
            const std::vector<Block> own = sent(from).download(test.stream);
            const auto first = own.begin() + owner * how.stride;
            all.insert(all.end(), first, first + how.stride);
        }
        auto buffer = test.arena.template allocate<Block>(text("test/received ", owner), all.size());
        buffer.upload(all, test.stream);
        return test.keep(buffer);
    }
    Doubles total(const std::vector<std::unique_ptr<TestTensor<float>>>& of_ranks) const {
        Doubles sum;
        for (const auto& one : of_ranks) {
            const Doubles values = one->values();
            sum.resize(values.size());
            for (std::size_t i = 0; i < values.size(); i++) sum[i] += values[i];
        }
        return sum;
    }
};

template <class Block>
void check_sums(int ranks, std::int64_t shard, std::int64_t more_blocks) {
    INFO(ranks << " ranks, shards of " << shard << ", " << more_blocks << " more blocks");
    Sum<Block> sum(ranks, shard, more_blocks);
    const Doubles given = sum.total(sum.gradients), before = sum.total(sum.errors);
    sum.compress();
    const Doubles left = sum.total(sum.errors);
    Doubles in_shards, whole;
    std::vector<Block> rounded;   // by all owners
    for (int owner = 0; owner < ranks; owner++) {
        const DeviceBuffer<Block> received = sum.received_by(owner);
        auto own = sum.test.template output<float>(static_cast<std::size_t>(shard));
        sum_blocks(own.data(), received.data(), sum.how, sum.test.stream);
        const Doubles values = own.values();
        in_shards.insert(in_shards.end(), values.begin(), values.end());
        auto out = sum.test.arena.template allocate<Block>(text("test/rounded ", owner),
                                                           static_cast<std::size_t>(sum.how.stride));
        round_sum(out.data(), received.data(), sum.how, owner, sum.error(owner), sum.test.stream);
        const std::vector<Block> of_owner = out.download(sum.test.stream);
        rounded.insert(rounded.end(), of_owner.begin(), of_owner.end());
    }
    auto all = sum.test.arena.template allocate<Block>("test/all", rounded.size());
    all.upload(rounded, sum.test.stream);
    auto result = sum.test.template output<float>(static_cast<std::size_t>(ranks * shard));
    expand_blocks(result.data(), all.data(), sum.how, sum.test.stream);
    whole = result.values();
    const Doubles left_in_all = sum.total(sum.errors);
    bool rounds = false;
    for (std::size_t i = 0; i < given.size(); i++) {
        CHECK(std::abs(in_shards[i] + left[i] - given[i] - before[i]) < 1e-5);
        CHECK(std::abs(whole[i] + left_in_all[i] - given[i] - before[i]) < 1e-5);
        CHECK(std::abs(left[i]) < 0.02 * ranks);   // half of a scale, of numbers that are seldom above 4
        rounds = rounds || std::abs(left[i]) > 1e-6;
    }
    CHECK((rounds || shard == 1));   // 8 bits with a scale of its own hold a single number
}

}   // namespace

TEST_CASE("compressed gradients: sums and what was left out are all that was given, whatever ranks and shards") {
    for (const int ranks : {1, 2, 3}) {
        for (const std::int64_t shard : {1, 64, 256, 448}) {
            for (const std::int64_t more_blocks : {0, 2}) {
                check_sums<Int8Block>(ranks, shard, more_blocks);
                check_sums<Bf16Block>(ranks, shard, more_blocks);
            }
        }
    }
}

TEST_CASE("compressed gradients: shares of whole blocks, of which the last may be short or empty, lose nothing") {
    for (const std::int64_t ranks : {2, 3, 5}) {
        for (const std::int64_t elements : {64, 300, 1024, 1216}) {
            CAPTURE(ranks);
            CAPTURE(elements);
            KernelTest test;
            const ShardBlocks how = shards_of_blocks(ranks, elements);
            const auto n = static_cast<std::size_t>(elements), all = static_cast<std::size_t>(ranks * how.stride);
            std::int64_t held = 0;
            for (std::int64_t r = 0; r < ranks; r++) held += how.held(r);
            CHECK(held == elements);
            CHECK(how.shard * ranks >= elements);
            std::vector<Int8Block> rounded;
            Doubles given(n), left(n);
            std::vector<std::vector<Int8Block>> sent;
            std::vector<std::unique_ptr<TestTensor<float>>> errors;
            for (std::int64_t r = 0; r < ranks; r++) {
                const auto seed = static_cast<std::uint64_t>(1 + r);
                auto gradient = test.random<float>(n, 1.0, seed);
                errors.push_back(std::make_unique<TestTensor<float>>(test.random<float>(n, 1e-2, 10 * seed)));
                for (const Doubles& part : {gradient.values(), errors.back()->values()}) {
                    for (std::size_t i = 0; i < n; i++) given[i] += part[i];
                }
                auto blocks = test.arena.allocate<Int8Block>(text("test/sent ", r), all);
                compress_gradients(blocks.data(), how, errors.back()->data(), gradient.data(), test.stream);
                sent.push_back(blocks.download(test.stream));
            }
            for (std::int64_t owner = 0; owner < ranks; owner++) {
                std::vector<Int8Block> of_owner;
                for (const std::vector<Int8Block>& one : sent) {
                    const auto first = one.begin() + owner * how.stride;
                    of_owner.insert(of_owner.end(), first, first + how.stride);
                }
                auto received = test.arena.allocate<Int8Block>(text("test/received ", owner), all);
                received.upload(of_owner, test.stream);
                auto out =
                    test.arena.allocate<Int8Block>(text("test/rounded ", owner), static_cast<std::size_t>(how.stride));
                round_sum(out.data(), received.data(), how, owner, errors[static_cast<std::size_t>(owner)]->data(),
                          test.stream);
                const std::vector<Int8Block> part = out.download(test.stream);
                rounded.insert(rounded.end(), part.begin(), part.end());
            }
            auto whole = test.arena.allocate<Int8Block>("test/all", all);
            whole.upload(rounded, test.stream);
            auto result = test.output<float>(n);
            expand_blocks(result.data(), whole.data(), how, test.stream);
            for (const auto& error : errors) {
                const Doubles values = error->values();
                for (std::size_t i = 0; i < n; i++) left[i] += values[i];
            }
            const Doubles arrived = result.values();
            for (std::size_t i = 0; i < n; i++) CHECK(std::abs(arrived[i] + left[i] - given[i]) < 1e-5);
        }
    }
}

TEST_CASE("compressed gradients: a block begins with each shard, so a rank's numbers do not change with its place") {
    KernelTest test;
    Doubles values(128, 1.0);
    std::fill(values.begin() + 64, values.end(), 1e-3);   // the second shard, far below the first
    auto gradient = test.tensor<float>(values), error = test.tensor<float>(Doubles(128, 0.0));
    auto blocks = test.arena.allocate<Int8Block>("test/blocks", 2);
    compress_gradients(blocks.data(), equal_shards(2, 64), error.data(), gradient.data(), test.stream);
    for (double left : error.values()) CHECK(std::abs(left) < 1e-6);
}

TEST_CASE("compressed gradients: numbers that are not finite arrive as such; errors of a step left out are dropped") {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
        auto check = [&]<class Block> {
            KernelTest test;
            Doubles values(300, 0.1);
            values[3] = bad;
            auto gradient = test.tensor<float>(values), error = test.tensor<float>(Doubles(300, 0.5));
            auto blocks = test.arena.allocate<Block>("test/blocks", 2);
            const ShardBlocks how = equal_shards(1, 300);
            compress_gradients(blocks.data(), how, error.data(), gradient.data(), test.stream);
            CHECK(!std::isfinite(error.values()[3]));
            CHECK(std::abs(error.values()[299]) < 0.01);
            auto sum = test.output<float>(300);
            sum_blocks(sum.data(), blocks.data(), how, test.stream);
            CHECK(!std::isfinite(sum.values()[3]));
            CHECK(std::abs(sum.values()[299] - 0.6) < 0.01);
            auto rounded = test.arena.allocate<Block>("test/rounded", 2);
            round_sum(rounded.data(), blocks.data(), how, 0, error.data(), test.stream);
            expand_blocks(sum.data(), rounded.data(), how, test.stream);
            CHECK(!std::isfinite(sum.values()[3]));
            const Doubles before = error.values();
            drop_error(error.data(), 300, test.ints({0}).data(), test.stream);
            CHECK(error.values()[299] == before[299]);
            drop_error(error.data(), 300, test.ints({1}).data(), test.stream);
            for (double left : error.values()) CHECK(left == 0.0);
        };
        check.template operator()<Int8Block>();
        check.template operator()<Bf16Block>();
    }
}
