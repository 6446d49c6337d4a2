#include "llmc/model/layer/sublayer.h"

#include "llmc/kernels/rows/residual.cuh"

void add_branch(floatX* out, const floatX* branch, const Join& join, const StageTools& tools, int rows) {
    ENSURE(join.residual, "an output without the residual stream that it is added to");
    if (rows < 0) rows = tools.sizes.residual_rows();
    if (join.norm) return join.norm->add_forward(out, join.to, join.residual, branch, rows);
    residual_forward<floatX>(out, join.residual, branch, std::int64_t{rows} * tools.sizes.C, tools.stream);
}

const floatX* SublayerBackward::keep(floatX* copy, const floatX* gradient, std::int64_t elements,
                                     cudaStream_t stream) const {
    if (!delayed() || copy == gradient) return gradient;
    CUDA_CHECK(cudaMemcpyAsync(copy, gradient, sizeof(floatX) * static_cast<std::size_t>(elements),
                               cudaMemcpyDeviceToDevice, stream));
    return copy;
}
