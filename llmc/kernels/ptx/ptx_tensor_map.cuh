// Describes how one instruction copies a tile of a tensor in global memory (tma_load, tma_store in ptx_hopper.cuh): the
// tensor's address and strides, and the tile's size. The host makes it; a kernel takes it by value as a
// __grid_constant__.
//
// Source: CUDA driver API, cuTensorMapEncodeTiled.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>

using TensorMap = CUtensorMap;

// Returns the map of a bf16 tensor in four dimensions, the innermost first, and of the box that one copy moves.
// `strides` are bytes from one index to the next of dimensions 1 to 3, multiples of 16; `data` is aligned to 16 bytes.
// A box is 64 elements wide, a row of 128 bytes in shared memory, with 16-byte pieces swizzled (piece c of row r lies
// at c ^ r % 8). Elements outside the tensor are read as zeros and not written.
//
// Throws Error(no_device) where the driver has no such maps, Error(bug) where it refuses this one.
inline constexpr int tensor_box_width = 64;
TensorMap make_tensor_map(const void* data, const std::array<std::uint64_t, 4>& sizes,
                          const std::array<std::uint64_t, 3>& strides, const std::array<std::uint32_t, 3>& box);
