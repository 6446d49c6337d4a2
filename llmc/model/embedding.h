// The embedding: residual stream = wte[tokens] + wpe[positions], and its backward.
#pragma once

#include "llmc/model/batch.h"
#include "llmc/model/cut_points.h"

class Embedding {
public:
    Embedding(const StageTools& tools, const ModelState<floatX>& parameters) : tools_(tools), parameters_(parameters) {}

    // out (residual rows, C).
    void forward(floatX* out, const Batch& batch) const;
    // Adds to what a tied classifier on this rank has written to dwte since it was begun; else dwte begins at zero.
    template <class G>
    void backward(const floatX* dout, const Batch& batch, Gradients<G>& gradients, WeightGradientQueue& queue) const;

private:
    const StageTools& tools_;
    const ModelState<floatX>& parameters_;
};
