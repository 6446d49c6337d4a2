#include "llmc/kernels/pack.h"

#include "llmc/kernels/kernel_testing.h"

TEST_CASE("pack: pieces side by side in order, and back into their places") {
    KernelTest test;
    const std::vector<std::size_t> counts{64, 8, 2048, 4096 + 64};
    std::vector<TestTensor<float>> pieces;
    std::vector<PackRange> ranges;
    Doubles expected;
    for (std::size_t count : counts) {
        pieces.push_back(test.random<float>(count, 1.0, count));
        const Doubles values = pieces.back().values();
        expected.insert(expected.end(), values.begin(), values.end());
        ranges.push_back({pieces.back().data(), static_cast<std::int64_t>(count * sizeof(float))});
    }
    const PackTable table = make_pack_table(test.arena, "test/packed", ranges, test.stream);
    test.keep(table.device_ranges), test.keep(table.packed);
    pack(table, test.stream);
    std::vector<float> packed = table.packed.as<float>().download(test.stream);
    CHECK(Doubles(packed.begin(), packed.end()) == expected);
    for (float& value : packed) value *= 2;
    table.packed.as<float>().upload(packed, test.stream);
    unpack(table, test.stream);
    std::size_t at = 0;
    for (auto& piece : pieces) {
        for (double value : piece.values()) CHECK(value == 2 * expected[at++]);
    }
}
