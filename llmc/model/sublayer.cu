#include "llmc/model/sublayer.h"

#include "llmc/kernels/rows/residual.cuh"

void add_branch(const SublayerForward& args, const floatX* branch, const StageTools& tools) {
    if (args.next) return args.next->norm.add_forward(args.out, args.next->to, args.in, branch);
    residual_forward<floatX>(args.out, args.in, branch, tools.sizes.residual_elements(), tools.stream);
}

const floatX* keep_gradient(const SublayerBackward& args, floatX* copy, const floatX* gradient, std::int64_t elements,
                            cudaStream_t stream) {
    if (!args.delayed()) return gradient;
    CUDA_CHECK(cudaMemcpyAsync(copy, gradient, sizeof(floatX) * static_cast<std::size_t>(elements),
                               cudaMemcpyDeviceToDevice, stream));
    return copy;
}
