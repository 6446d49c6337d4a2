// The head: final layernorm, classifier and cross-entropy, slice by slice over the rows, so that the logits of all
// tokens never exist at once. In training, loss and gradients are made together, in backward.
#pragma once

#include "llmc/model/layer/linear.h"

// Returns the default number of rows of logits that exist at once: `rows` in as few even slices as keep them within
// 2.25 GiB, a multiple of 128. Each slice after the first reads and writes the classifier's whole gradient again.
int default_classifier_rows(int rows, std::int64_t padded_vocab_size);

class Head {
public:
    // `slice_rows`: rows of logits that exist at once.
    Head(const StageTools& tools, const ModelState<floatX>& parameters, int slice_rows);

    // Computes the losses of all positions into Workspace::losses. in (residual rows, C): the output of the last layer.
    void loss(const floatX* in, const Batch& batch) const;
    // Makes loss() write Classifier::margins of all positions to `margins` too; null: no more.
    void keep_margins(float* margins) { margins_ = margins; }
    // Computes losses and gradients: dresidual (residual rows, C), the gradient of `in`, and those of lnf and of the
    // classifier. The total loss is `dloss` times the sum of losses, to which z_loss lse^2 is added here
    // (Classifier::z_loss).
    void loss_and_backward(floatX* dresidual, const floatX* in, const Batch& batch, float dloss,
                           Gradients& gradients) const;

    // For sampling: final_norm() norms all rows, then logits() makes some of them over the whole vocabulary, (count, tp
    // x Vp).
    void final_norm(const floatX* in) const;
    void logits(floatX* out, int first_row, int count) const;

    // Generation: the norm of the last layer's output, and the logits of one normed row.
    const Norm& norm() const { return norm_; }
    void cached_logits(floatX* out, const floatX* normed_row) const { classifier_.forward_few(out, normed_row, 1); }

private:
    NormOutput normed() const;
    template <class PerSlice>
    void for_slices(PerSlice&& per_slice) const;   // calls per_slice(first row, rows)
    void slice_loss(const Batch& batch, int first, int count, float dloss, bool gradient) const;

    const StageTools& tools_;
    bool vocabulary_is_whole_;   // on this rank
    int slice_rows_;
    float* margins_ = nullptr;
    Norm norm_;
    Linear classifier_;
};
