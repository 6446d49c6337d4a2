#include "llmc/data/loader.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("permutation: a bijection for every length") {
    std::vector<char> seen;
    for (std::uint64_t n = 1; n <= 3000; n++) {
        Permutation order(n, 42, n % 3);
        seen.assign(n, 0);
        bool good = true;
        for (std::uint64_t i = 0; i < n; i++) {
            std::uint64_t at = order(i);
            good = good && at < n && seen[at]++ == 0;
        }
        if (!good) FAIL("not a bijection of ", n);
    }
    // large lengths: in range, and no collision among many
    for (std::uint64_t n : {1ull << 40, (1ull << 40) + 1, 999999999989ull, (1ull << 62) - 1}) {
        Permutation order(n, 1, 0);
        std::set<std::uint64_t> values;
        for (std::uint64_t i = 0; i < 2000; i++) values.insert(order(n - 1 - i));
        CHECK(values.size() == 2000);
        CHECK(*values.rbegin() < n);
    }
}

TEST_CASE("permutation: looks random, and seed and epoch both matter") {
    const std::uint64_t n = 100000;
    Permutation order(n, 42, 0);
    double sum = 0, neighbours = 0;
    int cells[10][10] = {};
    for (std::uint64_t i = 0; i < n; i++) {
        sum += static_cast<double>(order(i)) * static_cast<double>(i);
        neighbours +=
            i > 0 && std::llabs(static_cast<long long>(order(i)) - static_cast<long long>(order(i - 1))) < 100;
        cells[i * 10 / n][order(i) * 10 / n]++;
    }
    const double size = static_cast<double>(n);
    double correlation = (sum / size - size * size / 4) / (size * size / 12);
    CHECK(std::abs(correlation) < 0.01);   // 3 sigma of a random order: 0.0095
    CHECK(neighbours / size < 0.004);      // expected 0.002
    for (auto& row : cells) {
        for (int count : row) CHECK(std::abs(count - 1000) < 150);   // 5 sigma
    }
    int same_seed = 0, same_epoch = 0;
    for (std::uint64_t i = 0; i < n; i++) {
        same_seed += order(i) == Permutation(n, 43, 0)(i);
        same_epoch += order(i) == Permutation(n, 42, 1)(i);
    }
    CHECK(same_seed < 10);
    CHECK(same_epoch < 10);
}

namespace {

constexpr std::int64_t T = 4;

// Two shards whose tokens tell where they lie: shard 0 holds 0, 1, 2 ..., shard 1 holds 100, 101 ...
struct TwoShards {
    TemporaryFolder folder;
    TwoShards() {
        std::vector<std::uint32_t> first(4 * 5 + 1), second(4 * 2 + 4);   // 5 windows; 2 windows and 3 tokens left over
        for (std::size_t i = 0; i < first.size(); i++) first[i] = static_cast<std::uint32_t>(i);
        for (std::size_t i = 0; i < second.size(); i++) second[i] = static_cast<std::uint32_t>(100 + i);
        write_token_file(real_files(), folder / "b.bin", TokenFormat::llama3, second);
        write_token_file(real_files(), folder / "a.bin", TokenFormat::gpt2, first);
    }
    TokenSet open(std::int64_t sequence = T) const {
        return {real_files(), "--train-data", folder / "*.bin", sequence, 256};
    }
};

std::vector<std::int32_t> first_tokens(const Loader& loader, std::uint64_t ahead, std::uint64_t count) {
    std::vector<std::int32_t> inputs(count * T), targets(count * T), result;
    loader.read(ahead, count, inputs, targets);
    for (std::size_t i = 0; i < count; i++) {
        result.push_back(inputs[i * T]);
        for (std::size_t t = 0; t < T; t++) CHECK(targets[i * T + t] == inputs[i * T] + static_cast<int>(t) + 1);
    }
    return result;
}

}   // namespace

TEST_CASE("loader: windows lie inside shards, in the order of their names") {
    TwoShards data;
    TokenSet tokens = data.open();
    CHECK(tokens.shards() == 2);
    CHECK(tokens.tokens() == 33);
    REQUIRE(tokens.windows() == 7);
    const std::vector<std::int32_t> starts{0, 4, 8, 12, 16, 100, 104};
    std::vector<std::int32_t> inputs(T), targets(T);
    for (std::uint64_t i = 0; i < 7; i++) {
        tokens.read_window(i, inputs, targets);
        CHECK(inputs == std::vector<std::int32_t>{starts[i], starts[i] + 1, starts[i] + 2, starts[i] + 3});
        CHECK(targets == std::vector<std::int32_t>{starts[i] + 1, starts[i] + 2, starts[i] + 3, starts[i] + 4});
    }
}

TEST_CASE("loader: every epoch visits every window once, each in its own order") {
    TwoShards data;
    TokenSet tokens = data.open();
    Loader loader(tokens, 42);
    std::vector<std::int32_t> all = first_tokens(loader, 0, 21);   // three epochs in one read
    std::set<std::vector<std::int32_t>> orders;
    for (int epoch = 0; epoch < 3; epoch++) {
        std::vector<std::int32_t> order(all.begin() + 7 * epoch, all.begin() + 7 * (epoch + 1));
        orders.insert(order);
        CHECK(std::set<std::int32_t>(order.begin(), order.end()) == std::set<std::int32_t>{0, 4, 8, 12, 16, 100, 104});
    }
    CHECK(orders.size() == 3);
}

TEST_CASE("loader: the order does not depend on how it is read, and the state is all there is") {
    TwoShards data;
    TokenSet tokens = data.open();
    const std::vector<std::int32_t> all = first_tokens(Loader(tokens, 42), 0, 24);
    for (std::uint64_t micro : {1, 2, 3, 4, 6, 8}) {
        Loader loader(tokens, 42);
        std::vector<std::int32_t> pieces;
        for (std::uint64_t step = 0; step < 24; step += 12) {
            for (std::uint64_t at = 0; at < 12; at += micro) {
                std::uint64_t n = std::min(micro, 12 - at);
                for (std::int32_t token : first_tokens(loader, at, n)) pieces.push_back(token);
            }
            loader.advance(12);
            Loader resumed(tokens, 42);
            resumed.seek(loader.state());
            loader = resumed;
        }
        CHECK(pieces == all);
    }
    Loader other(tokens, 43);
    CHECK(first_tokens(other, 0, 24) != all);
}

TEST_CASE("loader: ranges of samples are what whole samples have there, and nothing else is read") {
    TemporaryFolder folder;
    std::vector<std::uint32_t> ids(101);
    for (std::uint32_t i = 0; i < ids.size(); i++) ids[i] = i;
    write_token_file(real_files(), folder / "a.bin", TokenFormat::gpt2, ids);
    const TokenSet tokens(real_files(), "--train-data", folder / "a.bin", 10, 200);
    Loader loader(tokens, 7);
    std::vector<std::int32_t> whole(30), whole_targets(30);
    loader.read(3, 3, whole, whole_targets);
    std::vector<std::int32_t> inputs(15), targets(15);
    loader.read(3, 3, {{2, 3}, {8, 2}}, inputs, targets);
    for (std::size_t i = 0; i < 3; i++) {
        const std::size_t places[] = {2, 3, 4, 8, 9};
        for (std::size_t j = 0; j < 5; j++) {
            CHECK(inputs[5 * i + j] == whole[10 * i + places[j]]);
            CHECK(targets[5 * i + j] == whole_targets[10 * i + places[j]]);
            CHECK(targets[5 * i + j] == inputs[5 * i + j] + 1);   // also at the border of two ranges
        }
    }
    CHECK_THROWS(loader.read(0, 1, {{8, 3}}, std::span(inputs).first(3), std::span(targets).first(3)));
    CHECK_THROWS(loader.read(0, 1, {{0, 3}}, std::span(inputs).first(4), std::span(targets).first(4)));
    // an id outside the vocabulary is met only by those who read it
    const TokenSet unchecked(real_files(), "--train-data", folder / "a.bin", 100, 50, 0);
    std::vector<std::int32_t> part(40), part_targets(40);
    unchecked.read_window(0, {{0, 40}}, part, part_targets);
    CHECK_THROWS_AS(unchecked.read_window(0, {{20, 40}}, part, part_targets), Error);
}

TEST_CASE("loader: errors name the option and what would work") {
    TwoShards data;
    auto complaint = [&](auto&& action) -> std::string {
        try {
            action();
        } catch (const Error& error) {
            return text(error.exit_code(), " ", error.what());
        }
        return "";
    };
    std::string missing = complaint([&] { TokenSet(real_files(), "--val-data", data.folder / "val_*.bin", T, 256); });
    CHECK(missing.find("74 --val-data") == 0);
    CHECK(missing.find("no file matches") != std::string::npos);

    CHECK(data.open(20).windows() == 1);   // the second shard is too short and has none
    std::string too_long = complaint([&] { data.open(21); });
    CHECK(too_long.find("65 ") == 0);
    CHECK(too_long.find("has 21 tokens, expected at least --seq-len + 1 = 22") != std::string::npos);
    CHECK(too_long.find("Lower --seq-len to at most 20") != std::string::npos);

    std::string bad_id = complaint([&] { TokenSet(real_files(), "--train-data", data.folder / "*.bin", T, 100); });
    CHECK(bad_id.find("b.bin: byte 1024: token 0 has id 100, expected 0 to 99") != std::string::npos);

    // without the check at the start, the same id is found when it is read
    TokenSet unchecked(real_files(), "--train-data", data.folder / "*.bin", T, 100, 0);
    std::vector<std::int32_t> inputs(T), targets(T);
    CHECK_NOTHROW(unchecked.read_window(0, inputs, targets));
    CHECK_THROWS_AS(unchecked.read_window(5, inputs, targets), Error);

    TokenSet tokens = data.open();
    Loader loader(tokens, 42);
    CHECK(complaint([&] { loader.seek({0, 7, {}, tokens.T()}); }).find("the data has 7 samples") != std::string::npos);
}

TEST_CASE("loader: documents of 1, T and T + 1 tokens are found where they begin, in sequences as they are cut") {
    const TemporaryFolder folder;
    std::vector<std::uint32_t> ids;
    std::vector<bool> begins;
    for (const int length : {1, 1, 16, 17, 5, 1, 40, 16, 3, 60}) {   // 200 begins each
        for (int t = 0; t < length; t++) {
            ids.push_back(t == 0 ? 200 : static_cast<std::uint32_t>(ids.size()));
            begins.push_back(t == 0);
        }
    }
    write_token_file(real_files(), folder / "a.bin", TokenFormat::gpt2, ids);
    TokenSet tokens(real_files(), "--train-data", folder / "a.bin", 16, 256);
    tokens.tell_documents_apart({200, true});
    TokenSet ends(real_files(), "--train-data", folder / "a.bin", 16, 256);
    ends.tell_documents_apart({200, false});
    REQUIRE(tokens.windows() == 9);
    for (std::uint64_t window = 0; window < tokens.windows(); window++) {
        for (const std::int64_t length : {16, 8, 4}) {
            for (const std::vector<TokenRange>& ranges :
                 std::vector<std::vector<TokenRange>>{{{0, length}}, {{1, 1}, {length - 2, 2}}}) {
                std::vector<std::int32_t> expected;
                for (std::int64_t sequence = 0; sequence < 16; sequence += length) {
                    for (const TokenRange& range : ranges) {
                        for (std::int64_t t = range.begin; t < range.begin + range.length; t++) {
                            std::int64_t start = t;
                            while (start > 0 && !begins[window * 16 + static_cast<std::size_t>(sequence + start)])
                                start--;
                            expected.push_back(static_cast<std::int32_t>(start));
                        }
                    }
                }
                std::vector<std::int32_t> found(expected.size());
                tokens.read_starts(window, length, ranges, found);
                CHECK(found == expected);
            }
        }
        std::vector<std::int32_t> inputs(16), targets(16), without(16);
        tokens.read_window(window, inputs, targets);
        CHECK(tokens.count_targets(window) == 16);
        ends.read_window(window, inputs, without);
        int left = 0;
        for (std::size_t t = 0; t < 16; t++) {
            CHECK(without[t] == (begins[window * 16 + t + 1] ? -1 : targets[t]));
            left += without[t] >= 0;
        }
        CHECK(ends.count_targets(window) == left);
    }
    const Loader loader(tokens, 3);
    std::vector<std::int32_t> of_samples(32), of_window(16);
    loader.read_starts(1, 2, 16, {{0, 16}}, of_samples);
    tokens.read_starts(loader.samples(2, 1)[0].window, 16, {{0, 16}}, of_window);
    CHECK(std::equal(of_window.begin(), of_window.end(), of_samples.begin() + 16));
}

TEST_CASE("loader: one batch is the first windows in their order, in every epoch and whatever was read before") {
    const TwoShards data;
    const TokenSet tokens = data.open();
    Loader loader(tokens, 42, {}, true);
    const std::uint64_t last = tokens.windows() - 1;
    for (std::uint64_t moved : {std::uint64_t{0}, std::uint64_t{3}, tokens.windows()}) {
        loader.advance(moved);
        CHECK(loader.samples(last, 2) == std::vector<SampleId>{{0, 0, last}, {0, 0, 0}});
        CHECK(first_tokens(loader, 0, 7) == std::vector<std::int32_t>{0, 4, 8, 12, 16, 100, 104});
    }
}

TEST_CASE("loader: samples of another length begin a new epoch, once") {
    const TwoShards data;
    const TokenSet longer = data.open(4), shorter = data.open(2);
    Loader before(longer, 5), after(shorter, 5);
    before.advance(longer.windows() + 3);   // in the midst of the second epoch
    after.seek(before.state());
    CHECK(after.state() == LoaderState{2, 0, {}, 2});
    after.advance(3);
    Loader again(shorter, 5);
    again.seek(after.state());   // has this length already: nothing changes
    CHECK(again.state() == after.state());
    Loader untouched(shorter, 5);
    untouched.seek(Loader(longer, 5).state());   // nothing was read yet
    CHECK(untouched.state() == LoaderState{0, 0, {}, 2});
}

TEST_CASE("loader: an epoch that no run reaches is refused, not wrapped around") {
    const TwoShards data;
    const TokenSet tokens = data.open(4);
    Loader loader(tokens, 5);
    const std::uint64_t most = (std::uint64_t{1} << 53) / tokens.windows();
    loader.seek({most, 0, {}, 4});
    CHECK(loader.samples(0, 1).at(0).epoch == most);
    for (const std::uint64_t epoch : {most + 1, std::uint64_t{1'000'000'000'000'000'000}, UINT64_MAX}) {
        CHECK_THROWS_WITH_AS(loader.seek({epoch, 0, {}, 4}),
                             doctest::Contains("run.json: the saved position is epoch "), Error);
    }
}
