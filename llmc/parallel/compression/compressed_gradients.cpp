#include "llmc/parallel/compression/compressed_gradients.h"

#include "llmc/parallel/compression/low_rank_gradients.h"
#include "llmc/parallel/compression/rounded_gradients.h"
#include "llmc/parallel/compression/topk_gradients.h"

CompressedGradients::CompressedGradients(const StateBuffers& gradients, const ModelState<float>& error,
                                         Communicator& ranks)
    : between_groups_(compresses_between_groups(gradients.storage().place().mesh)),
      gradients_(gradients),
      error_(error),
      ranks_(ranks) {
    const ParamStorage& storage = gradients.storage();
    ENSURE(gradients.type() == DType::fp32, "compressed gradients of ", name_of(gradients.type()));
    ENSURE(between_groups_ || !is_sharded(StateKind::gradients, storage.place().zero_stage),
           "compressed gradients in shards");
    ENSURE(ranks.size() == compressed_sums(storage.place().mesh), "compressed gradients of ",
           compressed_sums(storage.place().mesh), " sums over ", ranks.size(), " ranks");
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
    const int N = compressed_sums(place.mesh);
    const bool between = compresses_between_groups(place.mesh),
               shards = !between && is_sharded(StateKind::optimizer, place.zero_stage);
    double sent = 0;   // less the factor (N - 1) / N
    for (const TensorLayout& tensor : storage.tensors()) {
        const TensorSpec& spec = storage.table()[tensor.param].tensor;
        if (!is_compressed(spec, place.mesh, options)) continue;
        const std::int64_t elements = between ? tensor.kept : tensor.padded;
        switch (options.how) {
            case GradCompression::topk:
                sent += (shards ? 1 : N) * topk_bytes(options.topk, elements, shards ? N : 1);
                break;
            case GradCompression::powersgd: sent += 2 * low_rank_bytes(spec, place.mesh, options.rank); break;
            default: sent += (shards ? 1 : 2) * rounded_bytes(options.how, elements, N, between);
        }
    }
    return static_cast<double>(N - 1) / N * sent;
}
