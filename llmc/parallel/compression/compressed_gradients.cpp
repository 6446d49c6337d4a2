#include "llmc/parallel/compression/compressed_gradients.h"

#include "llmc/parallel/compression/low_rank_gradients.h"
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
                                                          const StateBuffers& gradients,
                                                          const CompressionStates& states, Communicator& ranks,
                                                          Arena& arena) {
    switch (options.how) {
        case GradCompression::topk:
            return std::make_unique<TopkGradients>(options.topk, gradients, states.error, ranks, arena);
        case GradCompression::powersgd:
            return std::make_unique<LowRankGradients>(options.rank, gradients, states, ranks, arena);
        default: return std::make_unique<RoundedGradients>(options.how, gradients, states.error, ranks, arena);
    }
}

double compressed_traffic(const ParamStorage& storage, const GradCompressionOptions& options) {
    const RankLayout& place = storage.place();
    const int N = group_size(place.mesh, zero_axes);
    const bool shards = is_sharded(StateKind::optimizer, place.zero_stage);
    double sent = 0;   // less the factor (N - 1) / N
    for (const TensorLayout& tensor : storage.tensors()) {
        const TensorSpec& spec = storage.table()[tensor.param].tensor;
        if (!is_compressed(spec, place.mesh, options)) continue;
        switch (options.how) {
            case GradCompression::topk:
                sent += (shards ? 1 : N) * topk_bytes(options.topk, tensor.padded, shards ? N : 1);
                break;
            case GradCompression::powersgd: sent += 2 * low_rank_bytes(spec, place.mesh, options.rank); break;
            default: sent += (shards ? 1 : 2) * rounded_bytes(options.how, tensor.padded, N);
        }
    }
    return static_cast<double>(N - 1) / N * sent;
}
