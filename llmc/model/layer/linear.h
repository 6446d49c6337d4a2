// A linear layer of this rank, out = in weight^T + bias, and its part of tensor parallelism (tp_region.h).
//
// Sizes are those of this rank's tp shard: a column-parallel layer makes some of the outputs, a
// row-parallel one a part of every sum. The bias of the latter is added by tp rank 0 alone, so that
// the sum over ranks has it once. A layer that is not cut makes whole outputs of the rows it is given.
#pragma once

#include <string>

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/layer/sublayer.h"

class Linear {
public:
    // Its parameters are "<name>.weight" and, if the table has it, "<name>.bias". Its operands may be rounded to fp8.
    Linear(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer);
    // `weight` and `bias` are indices of the parameter table; -1: no bias. Its operands stay as they are.
    Linear(const StageTools& tools, const ModelState<floatX>& parameters, int weight, int bias);
    // Adds the parameters; `bias` only if the layer has one.
    static void add_parameters(std::vector<ParamRow>& rows, bool has_bias, const char* name, TensorSpec weight,
                               TensorSpec bias, bool writes_residual);

    int out_channels() const { return out_; }
    int in_channels() const { return in_; }

    // ---- `rows` rows, of which this rank has all that it needs

    // Computes out (rows, out) from in (rows, in).
    void forward(floatX* out, const floatX* in, int rows) const;
    void forward_gelu(floatX* gelu, floatX* pre_gelu, const floatX* in, int rows) const;
    // Computes forward() of few rows (generation).
    void forward_few(floatX* out, const floatX* in, int rows) const;
    // Computes din (rows, in) from dout (rows, out).
    void backward_input(floatX* din, const floatX* dout, int rows) const;
    // Computes backward_input() times the derivative of the GELU below, whose input was `pre_gelu` (rows, in).
    void backward_input_gelu(floatX* din, const floatX* dout, const floatX* pre_gelu, int rows) const;
    void backward_weight(Gradients& gradients, const floatX* dout, const floatX* in, int rows) const;

    // ---- column parallel: reads rows that tp ranks may share. forward() of each chunk follows TpRegion::begin_gather.

    // Ends the backward of a sublayer: from `dout` (R, out) returns the gradient of args.in, (Rr, C), summed over tp
    // ranks. Queues the weights' gradient, for which args.in is gathered again; if it is delayed it reads a copy of
    // dout, in `kept`.
    const floatX* end_backward(const SublayerBackward& args, const floatX* dout, floatX* kept) const;

    // ---- row parallel: the last matrix of a sublayer

    // Computes out (Rr, C), the sum over tp ranks of what each makes of its `in` (R, in), added to the residual stream
    // as `join` says. Where a matmul makes whole sums it adds the residual itself. Null `out`: does nothing.
    void forward_join(floatX* out, const floatX* in, const Join& join) const;
    // Begins the backward of a sublayer: returns the gradient args.dout of all rows, (R, C). Queues the weights'
    // gradient.
    const floatX* begin_backward(const SublayerBackward& args, const floatX* in) const;

private:
    MatmulShape shape(int rows) const { return {rows, out_, in_}; }
    // Return operands of matmuls (operands.h); `values` is (rows, cols).
    const floatX* weight() const;
    const floatX* operand(const floatX* values, int rows, int cols) const;

    const StageTools& tools_;
    int weight_index_, bias_index_;
    int out_, in_;
    bool may_round_ = false;
    const floatX *weight_, *bias_ = nullptr;
};
