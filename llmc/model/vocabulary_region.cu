#include "llmc/model/vocabulary_region.h"

#include "llmc/kernels/rows/classifier.cuh"
#include "llmc/kernels/rows/classifier_sharded.cuh"

void VocabularyRegion::set_sizes(const RankSizes& sizes) {
    columns_ = sizes.Vp;
    first_token_ = sizes.first_token;
    if (!group_) return;
    const std::size_t count = 3 * static_cast<std::size_t>(sizes.rows());
    if (sums_.size() == 0) sums_ = arena_.allocate<float>("workspace/vocabulary loss", count);
    ENSURE(count <= sums_.size(), "more rows than there is room for");
}

void VocabularyRegion::loss(const Classifier<floatX>& arguments) const {
    if (!group_) return fused_classifier(arguments, stream_);
    const auto rows = static_cast<std::size_t>(arguments.rows);
    const ShardedClassifier<floatX> sharded{arguments, first_token_, sums_.data(), sums_.data() + rows};
    sharded_classifier_begin(sharded, stream_);
    group_->all_reduce(sharded.maxima, rows, ReduceOp::max, stream_);
    sharded_classifier_relate(sharded, stream_);
    group_->all_reduce(sharded.sums, 2 * rows, ReduceOp::sum, stream_);
    sharded_classifier_finish(sharded, stream_);
}

// Gathers row by row, because ranks follow each other within a row.
void VocabularyRegion::gather_logits(floatX* out, const floatX* shard, int count) const {
    ENSURE(group_, "one device has all logits: there is nothing to gather");
    const auto columns = static_cast<std::size_t>(columns_);
    Communicator::Group together(*group_);
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); row++) {
        group_->all_gather(out + row * columns * static_cast<std::size_t>(group_->size()), shard + row * columns,
                           columns, stream_);
    }
}
