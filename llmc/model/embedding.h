// The embedding and its backward: residual stream = wte[tokens] + wpe[positions], without wpe if positions are not
// learned.
#pragma once

#include "llmc/model/batch.h"
#include "llmc/model/layer/stage_tools.h"
#include "llmc/model/parameters/gradients.h"

class Embedding {
public:
    Embedding(const StageTools& tools, const ModelState<floatX>& parameters)
        : tools_(tools),
          parameters_(parameters),
          wte_(parameters.tensor("wte.weight")),
          wpe_index_(parameters.storage().table().find("wpe.weight")),
          wpe_(wpe_index_ < 0 ? nullptr : parameters.tensor(wpe_index_)) {}

    // Embeds the tokens of a batch into out (residual rows, C).
    void forward(floatX* out, const Batch& batch) const;
    // Adds to dwte if it was begun already, by a tied classifier on this rank (Gradients::next); else dwte begins at
    // zero.
    void backward(const floatX* dout, const Batch& batch, Gradients& gradients, WeightGradientQueue& queue) const;
    // Generation: embeds `rows` tokens of one sequence, from `position` on, into out (rows, C).
    void cached(floatX* out, const int* tokens, int position, int rows) const;

private:
    const StageTools& tools_;
    const ModelState<floatX>& parameters_;
    const floatX* wte_;
    int wpe_index_;   // -1: positions are not learned
    const floatX* wpe_;
};
