#include "dev/test/certificate/replayed_choices_testing.h"

#include <algorithm>
#include <functional>

#include "llmc/base/check.h"
#include "llmc/base/stream.h"

namespace certificate {

template <class Use>
void KnownChoices::for_rows(int layer, const RankSizes& sizes, Use&& use) {
    const int micro_batch = micro_batches_[layer]++;
    const RowSequences rows = sequences(sizes);
    const auto K = static_cast<std::size_t>(sizes.model.experts_per_token());
    for (int row = 0; row < sizes.residual_rows(); row++) {
        const int of_batch = row / rows.own * rows.chunk + rows.first + row % rows.own;
        const int sequence = (micro_batch * dp_ + replica_) * sizes.B + of_batch / sizes.T,
                  position = positions_[static_cast<std::size_t>(of_batch % sizes.T)];
        const auto token = static_cast<std::size_t>(sequence) * static_cast<std::size_t>(sizes.whole_T) +
                           static_cast<std::size_t>(position);
        for (std::size_t k = 0; k < K; k++) use(static_cast<std::size_t>(row) * K + k, token * K + k);
    }
}

bool KnownChoices::replays(std::int32_t* index, int layer, const RankSizes& sizes, cudaStream_t stream) {
    if (records_) return false;
    const std::vector<std::int32_t>& all = choices_->at({step_, layer});
    std::vector<std::int32_t> own;
    for_rows(layer, sizes, [&](std::size_t, std::size_t of_all) { own.push_back(all[of_all]); });
    CUDA_CHECK(cudaMemcpyAsync(index, own.data(), sizeof(std::int32_t) * own.size(), cudaMemcpyHostToDevice, stream));
    return true;
}

void KnownChoices::has_chosen(const std::int32_t* index, const float* logits, int layer, const RankSizes& sizes,
                              cudaStream_t stream) {
    if (!records_) return;
    const auto K = static_cast<std::size_t>(sizes.model.experts_per_token()),
               E = static_cast<std::size_t>(sizes.model.experts),
               rows = static_cast<std::size_t>(sizes.residual_rows());
    std::vector<std::int32_t> own(rows * K);
    std::vector<float> scores(rows * E);
    auto download = [&]<class T>(std::vector<T>& to, const T* from) {
        CUDA_CHECK(cudaMemcpyAsync(to.data(), from, sizeof(T) * to.size(), cudaMemcpyDeviceToHost, stream));
    };
    download(own, index), download(scores, logits);
    std::vector<float> bias(E, 0.0f);
    if (bias_ != nullptr) download(bias, bias_ + static_cast<std::size_t>(layer) * E);
    wait_for(stream);
    const bool sigmoid = sizes.model.router == RouterScore::sigmoid;
    for (std::size_t i = 0; sigmoid && i < scores.size(); i++) {
        scores[i] = 1 / (1 + std::exp(-scores[i])) + bias[i % E];
    }
    for (std::size_t row = 0; row < rows && K < E; row++) {
        const auto begin = scores.begin() + static_cast<std::ptrdiff_t>(row * E);
        std::sort(begin, begin + static_cast<std::ptrdiff_t>(E), std::greater<>());
        choices_->smallest_gap = std::min(choices_->smallest_gap, scores[row * E + K - 1] - scores[row * E + K]);
    }
    std::vector<std::int32_t>& all = (*choices_)[{step_, layer}];
    all.resize(static_cast<std::size_t>(sequences_) * static_cast<std::size_t>(sizes.whole_T) * K);
    for_rows(layer, sizes, [&](std::size_t of_own, std::size_t of_all) { all[of_all] = own[of_own]; });
}

}   // namespace certificate
