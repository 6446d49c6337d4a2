// Contents of the stand-in's CUtensorMap.
#pragma once

#include <cstdint>

#include "llmc/cuda_on_cpu/include/cuda.h"

namespace ptx_model {

struct TensorMap {
    const void* data;
    std::uint64_t sizes[4], strides[4];   // elements, bytes
    std::uint32_t box[4];
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

TensorMap tensor_map(const CUtensorMap& map);

}   // namespace ptx_model
