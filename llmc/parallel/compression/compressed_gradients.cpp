#include "llmc/parallel/compression/compressed_gradients.h"

#include "llmc/parallel/compression/rounded_gradients.h"
#include "llmc/parallel/compression/topk_gradients.h"

CompressedGradients::CompressedGradients(const StateBuffers& gradients, const ModelState<float>& error,
                                         Communicator& ranks)
    : gradients_(gradients), error_(error), ranks_(ranks) {
    const ParamStorage& storage = gradients.storage();
    ENSURE(gradients.type() == DType::fp32, "compressed gradients of ", name_of(gradients.type()));
    ENSURE(!is_sharded(StateKind::gradients, storage.place().zero_stage), "compressed gradients in shards");
    for (const TensorLayout& tensor : storage.tensors()) {
        ENSURE(!takes(tensor) || storage.table()[tensor.param].tensor.owner < 0,
               "compressed gradients of a matrix with one owner");
    }
}

std::unique_ptr<CompressedGradients> compressed_gradients(const GradCompressionOptions& options,
                                                          const StateBuffers& gradients, const ModelState<float>& error,
                                                          Communicator& ranks, Arena& arena) {
    if (options.how == GradCompression::topk) {
        return std::make_unique<TopkGradients>(options.topk, gradients, error, ranks, arena);
    }
    return std::make_unique<RoundedGradients>(options.how, gradients, error, ranks, arena);
}

double compressed_traffic(const ParamStorage& storage, const GradCompressionOptions& options) {
    const RankLayout& place = storage.place();
    const std::int64_t N = group_size(place.mesh, zero_axes);
    const bool shards = is_sharded(StateKind::optimizer, place.zero_stage),
               picks = options.how == GradCompression::topk;
    double bytes = 0;
    for (const TensorLayout& tensor : storage.tensors()) {
        if (!is_compressed(storage.table()[tensor.param].tensor, place.mesh)) continue;
        bytes += picks ? topk_bytes(options.topk, tensor.padded, shards ? N : 1)
                       : rounded_bytes(options.how, tensor.padded, N);
    }
    const double hops = shards ? 1 : picks ? static_cast<double>(N) : 2;
    return hops * static_cast<double>(N - 1) / static_cast<double>(N) * bytes;
}
