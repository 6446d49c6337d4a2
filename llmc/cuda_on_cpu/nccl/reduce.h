// Reduces element-wise over the ranks' contributions, in rank order: out = ((c0 op c1) op c2) ... bf16 is added up in
// fp32 and rounded once, to nearest even.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace host {

std::size_t size_of(ncclDataType_t type);   // 0 if the stand-in does not serve it
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);
bool can_reduce(ncclDataType_t type, ncclRedOp_t op);

// Reduces. `contributions[r]` holds `count` elements of rank r. `out` may be one of them.
void reduce(void* out, const std::vector<const void*>& contributions, std::size_t count, ncclDataType_t type,
            ncclRedOp_t op);

}   // namespace host
