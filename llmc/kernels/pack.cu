#include "llmc/kernels/pack.h"

#include <utility>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows/block_table.cuh"

constexpr int kPacket = 16;   // bytes of a thread
constexpr std::int64_t kPackBlock = std::int64_t{kPacket} * kElementwiseThreads;

__global__ void __launch_bounds__(kElementwiseThreads)
    pack_kernel(std::byte* packed, const PackRange* ranges, int count, bool back) {
    const PackRange range = range_of_block(ranges, count, blockIdx.x);
    const std::int64_t i = span_of_block(range, blockIdx.x, kPackBlock).begin + threadIdx.x * kPacket;
    if (i >= range.count) return;
    std::byte *const here = static_cast<std::byte*>(range.data) + i, *const there = packed + range.packed + i;
    *reinterpret_cast<int4*>(back ? here : there) = *reinterpret_cast<const int4*>(back ? there : here);
}

namespace {

void move_packed(const PackTable& table, bool back, cudaStream_t stream) {
    if (table.blocks == 0) return;
    Launch where{dim3(blocks_for(table.blocks, 1)), dim3(kElementwiseThreads), 0, stream};
    where.reads(table.device_ranges.data(), table.device_ranges.bytes());
    for (const PackRange& range : table.ranges) {
        const auto bytes = static_cast<std::size_t>(range.count);
        back ? where.writes(range.data, bytes) : where.reads(range.data, bytes);
    }
    std::byte* const packed = table.packed.data();
    back ? where.reads(packed, table.packed.bytes()) : where.writes(packed, table.packed.bytes());
    launch(pack_kernel, where, packed, table.device_ranges.data(), static_cast<int>(table.ranges.size()), back);
}

}   // namespace

PackTable make_pack_table(Arena& arena, const std::string& name, std::vector<PackRange> ranges, cudaStream_t stream) {
    PackTable table;
    table.blocks = number_blocks(ranges, kPackBlock);
    std::int64_t bytes = 0;
    for (PackRange& range : ranges) {
        ENSURE(range.count % kPacket == 0 && reinterpret_cast<std::uintptr_t>(range.data) % kPacket == 0, "a piece of ",
               range.count, " bytes that is not aligned");
        range.packed = bytes;
        bytes += range.count;
    }
    table.ranges = std::move(ranges);
    table.device_ranges = arena.allocate<PackRange>(name + "_ranges", table.ranges.size());
    table.device_ranges.upload(table.ranges, stream);
    table.packed = arena.allocate<std::byte>(name, static_cast<std::size_t>(bytes));
    return table;
}

void pack(const PackTable& table, cudaStream_t stream) { move_packed(table, false, stream); }
void unpack(const PackTable& table, cudaStream_t stream) { move_packed(table, true, stream); }
