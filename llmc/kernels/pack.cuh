// Packs pieces of several buffers side by side into one buffer, and unpacks them, so that they travel in one transfer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows/block_table.cuh"

template <class Real>
struct PackRange {
    Real* data;                     // on a 16-byte boundary
    std::int64_t count;             // a multiple of eight
    std::int64_t packed = 0;        // offset in the packed buffer; filled by make_pack_table
    std::int64_t first_block = 0;   // filled by make_pack_table
};

// Pieces in order, on the device with the buffer they are packed into; made once, used every step.
template <class Real>
struct PackTable {
    std::vector<PackRange<Real>> ranges;
    DeviceBuffer<PackRange<Real>> device_ranges;
    DeviceBuffer<Real> packed;
    std::int64_t blocks = 0;
};

template <class Real>
PackTable<Real> make_pack_table(Arena& arena, const std::string& name, std::vector<PackRange<Real>> ranges,
                                cudaStream_t stream);
template <class Real>
void pack(const PackTable<Real>& table, cudaStream_t stream);   // copies the pieces to table.packed
template <class Real>
void unpack(const PackTable<Real>& table, cudaStream_t stream);   // copies them back

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    pack_kernel(Real* packed, const PackRange<Real>* ranges, int count, bool back) {
    const PackRange<Real> range = range_of_block(ranges, count, blockIdx.x);
    const std::int64_t i = span_of_block(range, blockIdx.x, kElementwiseBlock).begin + threadIdx.x * 8;
    if (i >= range.count) return;
    Real *const here = range.data + i, *const there = packed + range.packed + i;
    copy8(back ? here : there, back ? there : here);   // always whole packets: make_pack_table checks
}

template <class Real>
PackTable<Real> make_pack_table(Arena& arena, const std::string& name, std::vector<PackRange<Real>> ranges,
                                cudaStream_t stream) {
    PackTable<Real> table;
    table.blocks = number_blocks(ranges, kElementwiseBlock);
    std::int64_t elements = 0;
    for (PackRange<Real>& range : ranges) {
        ENSURE(range.count % 8 == 0 && reinterpret_cast<std::uintptr_t>(range.data) % 16 == 0, "a piece of ",
               range.count, " elements that is not aligned");
        range.packed = elements;
        elements += range.count;
    }
    table.ranges = std::move(ranges);
    table.device_ranges = arena.allocate<PackRange<Real>>(name + "_ranges", table.ranges.size());
    table.device_ranges.upload(table.ranges, stream);
    table.packed = arena.allocate<Real>(name, static_cast<std::size_t>(elements));
    return table;
}

template <class Real>
void move_packed(const PackTable<Real>& table, bool back, cudaStream_t stream) {
    if (table.blocks == 0) return;
    Launch where{dim3(blocks_for(table.blocks, 1)), dim3(kElementwiseThreads), 0, stream};
    where.reads(table.device_ranges.data(), table.device_ranges.bytes());
    for (const PackRange<Real>& range : table.ranges) {
        const std::size_t bytes = static_cast<std::size_t>(range.count) * sizeof(Real);
        if (back) {
            where.writes(range.data, bytes);
        } else {
            where.reads(range.data, bytes);
        }
    }
    if (back) {
        where.reads(table.packed.data(), table.packed.bytes());
    } else {
        where.writes(table.packed.data(), table.packed.bytes());
    }
    launch(pack_kernel<Real>, where, table.packed.data(), table.device_ranges.data(),
           static_cast<int>(table.ranges.size()), back);
}

template <class Real>
void pack(const PackTable<Real>& table, cudaStream_t stream) {
    move_packed(table, false, stream);
}
template <class Real>
void unpack(const PackTable<Real>& table, cudaStream_t stream) {
    move_packed(table, true, stream);
}
