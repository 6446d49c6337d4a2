#include "dev/test/certificate/damage_testing.h"

#include "llmc/base/ensure.h"
#include "llmc/kernels/accumulate.cuh"

void certificate::double_values(void* data, ncclDataType_t type, std::size_t first, std::size_t count,
                                cudaStream_t stream) {
    auto add = [&]<class T>(T* values) {
        accumulate(values + first, values + first, static_cast<std::int64_t>(count), stream);
    };
    ENSURE(type == ncclFloat32 || type == ncclBfloat16, "type ", static_cast<int>(type), " cannot be damaged");
    if (type == ncclFloat32) return add(static_cast<float*>(data));
    add(static_cast<bf16*>(data));
}
