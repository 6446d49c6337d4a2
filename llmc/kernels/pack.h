// Packs pieces of several buffers side by side into one buffer, and unpacks them, so that they travel in one transfer.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/arena.h"

struct PackRange {
    void* data;                     // on a 16-byte boundary
    std::int64_t count;             // bytes, a multiple of 16
    std::int64_t packed = 0;        // offset in the packed buffer; filled by make_pack_table
    std::int64_t first_block = 0;   // filled by make_pack_table
};

// Pieces in order, on the device with the buffer they are packed into; made once, used every step.
struct PackTable {
    std::vector<PackRange> ranges;
    DeviceBuffer<PackRange> device_ranges;
    DeviceBuffer<std::byte> packed;
    std::int64_t blocks = 0;
};

PackTable make_pack_table(Arena& arena, const std::string& name, std::vector<PackRange> ranges, cudaStream_t stream);
void pack(const PackTable& table, cudaStream_t stream);     // copies the pieces to table.packed
void unpack(const PackTable& table, cudaStream_t stream);   // copies them back
