// The embedding: residual stream = wte[tokens] + wpe[positions] (without the latter where
// positions are not learned), and its backward.
#pragma once

#include "llmc/model/batch.h"
#include "llmc/model/cut_points.h"

class Embedding {
public:
    Embedding(const StageTools& tools, const ModelState<floatX>& parameters)
        : tools_(tools),
          parameters_(parameters),
          wte_(parameters.tensor("wte.weight")),
          wpe_index_(parameters.storage().table().find("wpe.weight")),
          wpe_(wpe_index_ < 0 ? nullptr : parameters.tensor(wpe_index_)) {}

    // out (residual rows, C).
    void forward(floatX* out, const Batch& batch) const;
    // Adds to what a tied classifier on this rank has written to dwte since it was begun; else dwte begins at zero.
    void backward(const floatX* dout, const Batch& batch, AnyGradients& gradients, WeightGradientQueue& queue) const;
    // Generation: out (rows, C), of one sequence from `position` on.
    void cached(floatX* out, const int* tokens, int position, int rows) const;

private:
    const StageTools& tools_;
    const ModelState<floatX>& parameters_;
    const floatX* wte_;
    int wpe_index_;   // -1: positions are not learned
    const floatX* wpe_;
};
