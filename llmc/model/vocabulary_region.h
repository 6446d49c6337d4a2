// Tensor parallelism of the vocabulary: each tp rank has the logits of some ids, a column block of every row. The loss
// of a row needs all of them: all-reduces of the maxima of a slice's rows, then of two sums a row, in fp32: 6f x 4
// bytes a row, f = (tp - 1) / tp. (Rows that enter the classifier and leave the embedding: tp_region.h.)
#pragma once

#include "llmc/base/arena.h"
#include "llmc/model/memory/rank_sizes.h"
#include "llmc/model/precision.h"
#include "llmc/process/comm.h"

template <class Real>
struct Classifier;   // llmc/kernels/rows/classifier.cuh

class VocabularyRegion {
public:
    // `group`: the tp ranks in order; null: this rank's logits are all there are.
    VocabularyRegion(Communicator* group, Arena& arena, cudaStream_t stream)
        : group_(group), arena_(arena), stream_(stream) {}

    // Sets the sizes of the next micro-batches. The first call must have the largest.
    void set_sizes(const RankSizes& sizes);

    // Computes the cross-entropy of a slice of rows of logits, of which this rank has the columns of its shard.
    void loss(const Classifier<floatX>& arguments) const;
    // Gathers rows of logits, out (count, tp x Vp), of which `shard` (count, Vp) has this rank's columns. Not called on
    // one device.
    void gather_logits(floatX* out, const floatX* shard, int count) const;

private:
    Communicator* group_;
    Arena& arena_;
    cudaStream_t stream_;
    int columns_ = 0, first_token_ = 0;   // this rank's shard
    DeviceBuffer<float> sums_;            // (3, R): maxima and two sums
};
