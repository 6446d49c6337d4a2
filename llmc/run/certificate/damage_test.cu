#include "llmc/run/certificate/damage_test.h"

#include "llmc/kernels/accumulate.cuh"

bool certificate::double_values(void* data, ncclDataType_t type, std::size_t count, cudaStream_t stream) {
    auto add = [&]<class T>(T* values) { accumulate(values, values, static_cast<std::int64_t>(count), stream); };
    if (type == ncclFloat32) {
        add(static_cast<float*>(data));
    } else if (type == ncclBfloat16) {
        add(static_cast<bf16*>(data));
    } else {
        return false;
    }
    return true;
}
